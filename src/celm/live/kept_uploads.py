"""The uploads of the last rounds, as files that `celm audit` reads.

    uploads/round-000012/global.safetensors     the model that was sent in round 12
    uploads/round-000012/NAME.safetensors       the model that client NAME returned

They are members' models, so only the owner may read them (POSIX). The oldest rounds are removed first.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Mapping
from pathlib import Path

from celm.base.errors import CelmError
from celm.base.files import PRIVATE_FOLDER, os_errors_as_celm_error, write_tensors
from celm.models.state_dict import StateDict

UPLOADS_FOLDER = "uploads"
_GLOBAL = "global"


def save_uploads(
    folder: Path,
    round_number: int,
    global_model: StateDict,
    updates: Mapping[str, StateDict],
    max_rounds: int,
    max_bytes: int,
) -> None:
    """Save the uploads of a round in the state folder, and remove rounds beyond the limits.

    Raise CelmError if the round alone exceeds `max_bytes`, or if it cannot be written.
    """
    models = dict(zip(file_stems(updates), updates.values(), strict=True))
    size = sum(_num_bytes(model) for model in (global_model, *models.values()))
    if size > max_bytes:
        raise CelmError(
            f"uploads of round {round_number} are not kept: {size} bytes, more than upload_bytes={max_bytes}"
        )
    uploads = folder / UPLOADS_FOLDER
    final = uploads / f"round-{round_number:06d}"
    partial = uploads / f".round-{round_number:06d}.part"
    with os_errors_as_celm_error(uploads, "write"):
        uploads.mkdir(PRIVATE_FOLDER, exist_ok=True)
        for leftover in (*uploads.glob(".round-*.part"), final):
            if leftover.exists():
                shutil.rmtree(leftover)
        _remove_oldest(uploads, max_rounds - 1, max_bytes - size)
        partial.mkdir(PRIVATE_FOLDER)
        for stem, model in {_GLOBAL: global_model, **models}.items():
            write_tensors(partial / f"{stem}.safetensors", model, {"round": round_number}, private=True)
        partial.rename(final)


def file_stems(clients: Mapping[str, object]) -> list[str]:
    """Return a file name for each client, from its name without characters that a path may not have.

    >>> file_stems({"north": 0, "../north": 0, "Global": 0, "NORTH": 0})
    ['north', '_north-2', 'Global-3', 'NORTH-4']
    """
    stems: list[str] = []
    taken = {_GLOBAL}
    for number, client in enumerate(clients, start=1):
        stem = re.sub(r"[^A-Za-z0-9._-]", "_", client)[:100].lstrip(".")
        if stem != client or not stem:
            stem += f"-{number}"
        while stem.casefold() in taken:
            stem += f"-{number}"
        taken.add(stem.casefold())
        stems.append(stem)
    return stems


def _remove_oldest(uploads: Path, max_rounds: int, max_bytes: int) -> None:
    """Remove the oldest rounds until these limits hold."""
    rounds = sorted(uploads.glob("round-*"))
    sizes = [sum(file.stat().st_size for file in path.iterdir()) for path in rounds]
    while rounds and (len(rounds) > max_rounds or sum(sizes) > max_bytes):
        shutil.rmtree(rounds.pop(0))
        sizes.pop(0)


def _num_bytes(model: StateDict) -> int:
    return sum(tensor.numel() * tensor.element_size() for tensor in model.values())
