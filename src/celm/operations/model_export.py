"""Export the global model of a federation from its state folder."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from celm.base.errors import CelmError
from celm.base.files import read_tensors, tensor_digest, write_bytes
from celm.records.federation_files import read_federation

if TYPE_CHECKING:
    from torch import Tensor


def export_global_model(folder: Path, path: Path) -> int:
    """Write the global model of the last saved round as safetensors; return the round.

    The tensors are those that clients exchange. Raise CelmError unless their digest is the one in the record.
    """
    if path.suffix != ".safetensors":
        raise CelmError(
            f"cannot export to {path.name}: a state folder has no program of the model", "use .safetensors"
        )
    from safetensors.torch import save

    federation = read_federation(folder)
    checkpoints = sorted((folder / "checkpoints").glob("round-*.safetensors"))
    if not checkpoints:
        raise CelmError(f"{folder} has no checkpoint", "restore checkpoints/ from a backup")
    tensors, metadata = read_tensors(checkpoints[-1])
    round_number, model = _global_model(tensors, metadata, checkpoints[-1])
    recorded = next((line.model for line in federation.rounds if line.round == round_number), None)
    if tensor_digest(model) != recorded:
        raise CelmError(
            f"{checkpoints[-1]} does not belong to the record: its global model is not that of round {round_number}"
        )
    write_bytes(path, save(model, metadata={"format": "pt", "round": str(round_number)}))
    return round_number


def _global_model(
    tensors: dict[str, Tensor], metadata: dict[str, object], path: Path
) -> tuple[int, dict[str, Tensor]]:
    """Return round and global model of a saved state (see `celm.base.state_serialisation`)."""
    try:
        fields = metadata["state"]["fields"]  # type: ignore[index]
        model = {name: tensors[value["tensor"]] for name, value in fields["model"]["items"]}
        return int(metadata["round"]), model  # type: ignore[call-overload]
    except (KeyError, TypeError, ValueError) as error:
        raise CelmError(f"{path} is not a state of a federation ({type(error).__name__})") from error
