"""The loader: models that match, faults with a reason, and a manifest of every file."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from auditing.conftest import CLASSES, SHAPE, WIDTHS, random_state
from celm.auditing.checkpoint_loader import CheckpointLoader
from celm.auditing.ledger import Manifest
from celm.auditing.model_loading import build_audited_model
from celm.auditing.settings import AuditSettings
from celm.auditing.sources import GLOBAL_NAME, Source
from celm.base.errors import CelmError
from celm.models.lazy_states import LazyStates


def make_loader(partial: bool = False) -> CheckpointLoader:
    settings = AuditSettings.parse(
        {
            "model": "mlp",
            "options": {"widths": WIDTHS},
            "input_shape": SHAPE,
            "classes": [str(k) for k in range(CLASSES)],
            "partial": partial,
        }
    )
    return CheckpointLoader.for_model(build_audited_model(settings, None, Source(GLOBAL_NAME)), Manifest())


def save(folder: Path, name: str, state: dict[str, torch.Tensor]) -> Source:
    path = folder / f"{name}.safetensors"
    save_file(state, path)
    return Source(name, path)


def test_a_file_is_loaded_with_its_tensors_and_recorded_with_its_bytes(tmp_path: Path) -> None:
    loader, source = make_loader(), save(tmp_path, "a", random_state(1))
    loaded = loader.load_client(source, "round-1")
    assert all(torch.equal(loaded.state[name], tensor) for name, tensor in random_state(1).items())
    content = source.path.read_bytes() if source.path else b""
    (entry,) = loader.manifest.files
    assert (entry.role, entry.round, entry.client, entry.excluded) == ("client", "round-1", "a", None)
    assert entry.sha256 == loaded.sha256 == hashlib.sha256(content).hexdigest()
    assert entry.size == loaded.size == len(content)


def test_a_fault_is_an_error_and_recorded_with_its_reason(tmp_path: Path) -> None:
    loader, source = make_loader(), save(tmp_path, "a", {"strange": torch.ones(3)})
    with pytest.raises(CelmError) as fault:
        loader.load_client(source, "")
    (entry,) = loader.manifest.files
    assert entry.excluded == str(fault.value)
    assert "fc1.weight" in str(fault.value)
    assert entry.sha256 is not None


def test_a_source_with_a_reason_is_never_read() -> None:
    loader = make_loader()
    with pytest.raises(CelmError, match="a reason"):
        loader.load_client(Source("a", Path("/nowhere"), reason="a reason"), "")
    (entry,) = loader.manifest.files
    assert (entry.sha256, entry.size, entry.excluded) == (None, None, "a reason")


def test_a_model_in_memory_leaves_no_file() -> None:
    loader = make_loader()
    loader.load_client(Source("a", model=random_state(1)), "")
    assert loader.manifest.files == []


def test_the_global_model_is_in_the_module_and_fills_partial_checkpoints() -> None:
    loader = make_loader(partial=True)
    loader.load_global(Source(GLOBAL_NAME, model=random_state(0)), "")
    assert all(
        torch.equal(tensor, random_state(0)[name]) for name, tensor in loader.model.state_dict().items()
    )
    head = {name: tensor for name, tensor in random_state(1).items() if name.startswith("head.")}
    loaded = loader.load_client(Source("a", model=head), "")
    assert torch.equal(loaded.state["head.weight"], random_state(1)["head.weight"])
    assert torch.equal(loaded.state["fc1.weight"], random_state(0)["fc1.weight"])
    assert "a" in loader.manifest.notes


def test_a_bad_global_model_is_an_error_that_names_the_file(tmp_path: Path) -> None:
    source = save(tmp_path, "global", {"strange": torch.ones(3)})
    with pytest.raises(CelmError, match=r"global model .*global\.safetensors"):
        make_loader().load_global(source, "")


def test_a_model_that_changed_is_not_loaded_again(tmp_path: Path) -> None:
    loader, source = make_loader(), save(tmp_path, "a", random_state(1))
    digest = loader.load_client(source, "").digest
    assert torch.equal(loader.reload_client(source, digest)["head.bias"], random_state(1)["head.bias"])
    save(tmp_path, "a", random_state(2))
    with pytest.raises(CelmError, match="changed"):
        loader.reload_client(source, digest)


def test_lazy_states_are_read_on_each_access() -> None:
    reads: list[int] = []

    def reader(number: int) -> dict[str, torch.Tensor]:
        reads.append(number)
        return {"w": torch.tensor(float(number))}

    states = LazyStates([lambda number=number: reader(number) for number in range(4)])  # type: ignore[misc]
    assert len(states) == 4
    assert reads == []
    assert [float(state["w"]) for state in states[1:3]] == [1, 2]
    assert float(states[1]["w"]) == 1
    assert reads == [1, 2, 1]
