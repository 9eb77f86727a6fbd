"""Idle clients: a copy of the global model, scaled or not, has no evidence and is flagged."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.nn import functional as F

import celm
from auditing.conftest import CLASSES, SHAPE, WIDTHS, Uploads
from celm.auditing.settings import AuditSettings
from celm.auditing.verify import verify_audit
from celm.base.errors import CelmError
from celm.core.calibration import CalibratedLogits
from celm.core.idle_detection import IDLE_THRESHOLD, relative_movement
from celm.core.model_stack import ModelStack
from celm.core.probe import model_noise, probe
from celm.models import build_model

State = dict[str, Tensor]
SETTINGS: dict[str, Any] = {
    "model": "mlp", "options": {"widths": WIDTHS}, "input_shape": SHAPE, "classes": CLASSES,
    "probe": {"steps": 30}, "evidence": "calibrated",
}  # fmt: skip


def network(seed: int = 0) -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return build_model("mlp", {"widths": WIDTHS}, SHAPE, CLASSES)


def trained(start: nn.Module, classes: Sequence[int], steps: int = 60) -> nn.Module:
    """Train on samples of these classes."""
    model, draw = copy.deepcopy(start), torch.Generator().manual_seed(3)
    centres = torch.randn(CLASSES, *SHAPE, generator=draw)
    y = torch.tensor(classes)[torch.randint(len(classes), (96,), generator=draw)]
    x = centres[y] + 0.4 * torch.randn(96, *SHAPE, generator=draw)
    optimiser = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(steps):
        optimiser.zero_grad()
        F.cross_entropy(model(x), y).backward()
        optimiser.step()
    return model


def state(model: nn.Module) -> State:
    return {name: tensor.detach().clone() for name, tensor in model.state_dict().items()}


START = trained(network(), range(CLASSES), 20)
CLIENTS = {"a": trained(START, [0, 1]), "b": trained(START, [1, 2]), "c": trained(START, [2, 0])}


def copied(factor: float, noise: float = 1e-3) -> State:
    """Return the global model with a little noise and a scaled head."""
    draw = torch.Generator().manual_seed(1)
    made = {
        name: tensor + noise * torch.randn(tensor.shape, generator=draw)
        for name, tensor in state(START).items()
    }
    return {name: factor * tensor if name.startswith("head.") else tensor for name, tensor in made.items()}


@pytest.mark.parametrize("factor", [1.0, 10.0, 100.0])
def test_a_scaled_copy_of_the_global_model_is_flagged_and_scores_nothing(factor: float) -> None:
    honest = celm.audit(START, CLIENTS, **SETTINGS)
    result = celm.audit(START, {**CLIENTS, "rider": copied(factor)}, **SETTINGS)
    assert list(result.flags) == ["rider"]
    assert result.flags["rider"].startswith("did not train")
    assert result.scores["rider"] == result.weights["rider"] == 0
    assert result.holds is not None
    assert result.holds["rider"] == []
    assert result.sole_holders == honest.sole_holders
    assert {name: result.scores[name] for name in CLIENTS} == pytest.approx(honest.scores)
    moved = result.document["movement"]
    assert moved["rider"] < IDLE_THRESHOLD < min(moved[name] for name in CLIENTS)


def test_without_movement_a_scaled_copy_is_not_flagged() -> None:
    result = celm.audit(START, {**CLIENTS, "rider": copied(10)}, **SETTINGS | {"movement": False})
    assert result.scores["rider"] > 0.1
    assert result.document["movement"] is None
    plain = celm.audit(START, {**CLIENTS, "rider": copied(10)}, **SETTINGS | {"evidence": "paper"})
    assert plain.document["movement"] is None


def test_honest_clients_are_not_flagged_and_lose_nothing() -> None:
    result, before = (celm.audit(START, CLIENTS, **SETTINGS | {"movement": look}) for look in (True, False))
    assert result.flags == {}
    for key in ("scores", "evidence", "holds", "sole_holders"):
        assert result.document[key] == before.document[key]


def test_a_single_client_has_no_movement() -> None:
    result = celm.audit(START, {"a": CLIENTS["a"]}, **SETTINGS)
    assert result.document["movement"] == {"a": None}
    assert result.flags == {}


def test_an_unchanged_copy_is_flagged_as_a_copy() -> None:
    result = celm.audit(START, {**CLIENTS, "rider": START}, **SETTINGS)
    assert result.flags == {"rider": "returned the model it was given, unchanged"}
    assert result.scores["rider"] == 0


def test_movement_equals_that_of_the_core_function() -> None:
    sent = {**{name: state(model) for name, model in CLIENTS.items()}, "rider": copied(3, 0.05)}
    ours = celm.audit(START, sent, **SETTINGS | {"num_starts": 2}).document["movement"]
    noise = model_noise(42, "start-0", CLASSES, SHAPE)[None]
    ended = probe(
        ModelStack(network(), [state(START)]), noise, CLASSES, steps=30, transform=CalibratedLogits(42)
    ).inputs[0]
    stacks = ModelStack(network(), [state(START)] * 4), ModelStack(network(), list(sent.values()))
    assert ours == pytest.approx(
        dict(zip(sent, relative_movement(*stacks, ended, 42).tolist(), strict=True)), rel=1e-3
    )


def test_movement_is_measured_behind_adapters() -> None:
    result = celm.audit(START, {**CLIENTS, "rider": copied(10)}, **SETTINGS | {"bounds": [-3, 3]})
    assert list(result.flags) == ["rider"]


def save_all(folder: Path, start: nn.Module, clients: dict[str, State]) -> None:
    folder.mkdir(parents=True)
    for name, tensors in {"global": state(start), **clients}.items():
        save_file(tensors, folder / f"{name}.safetensors")


def test_repeating_a_global_update_does_not_count_as_training(tmp_path: Path) -> None:
    """In the second round, a client repeats the global update of the first."""
    first = {name: state(model) for name, model in CLIENTS.items()}
    after = copy.deepcopy(START)
    after.load_state_dict({name: sum(each[name] for each in first.values()) / 3 for name in first["a"]})  # type: ignore[misc]
    replayed = {name: tensor + 0.7 * (tensor - state(START)[name]) for name, tensor in state(after).items()}
    second = {
        name: state(trained(after, held)) for name, held in {"a": [0, 1], "b": [1, 2], "c": [2, 0]}.items()
    }
    save_all(tmp_path / "clients" / "round-1", START, first)
    save_all(tmp_path / "clients" / "round-2", after, second | {"rider": replayed})
    result = celm.audit(
        tmp_path / "clients" / "round-1" / "global.safetensors", tmp_path / "clients", **SETTINGS
    )
    assert result.rounds[0]["flags"] == {}
    assert list(result.flags) == ["rider"]
    assert result.document["movement"]["rider"] == pytest.approx(0, abs=1e-3)
    assert result.weights["rider"] == 0


def save_files(folder: Path) -> tuple[Path, Path]:
    save_all(folder / "clients", START, {name: state(model) for name, model in CLIENTS.items()})
    save_file(copied(10), folder / "clients" / "rider.safetensors")
    return folder / "clients" / "global.safetensors", folder / "clients"


def test_an_audit_with_an_idle_client_verifies(uploads: Uploads) -> None:
    (uploads.folder / "more").mkdir()
    result = celm.audit(*save_files(uploads.folder / "more"), **SETTINGS, out=uploads.folder / "audit")
    assert list(result.flags) == ["rider"]
    assert uploads.invoke("audit-verify", "audit", "--full").exit_code == 0


def test_a_resumed_audit_measures_movement(tmp_path: Path) -> None:
    start, clients = save_files(tmp_path)
    whole = celm.audit(start, clients, **SETTINGS, out=tmp_path / "whole")

    def stop(done: int, total: int) -> None:
        if done == total - 1:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        celm.audit(start, clients, **SETTINGS, out=tmp_path / "again", watch=stop)
    again = celm.audit(start, clients, **SETTINGS, out=tmp_path / "again")
    assert again.document == whole.document


def test_movement_is_measured_with_calibrated_evidence_only() -> None:
    assert AuditSettings.parse({"classes": ["0"]}).movement
    assert not AuditSettings.parse({"classes": ["0"]}).detects_idle
    assert AuditSettings.parse({"classes": ["0"], "evidence": "calibrated"}).detects_idle


@pytest.mark.parametrize("kind", [torch.float64, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("evidence", ["paper", "calibrated"])
def test_models_of_any_precision_are_audited_in_float32(kind: torch.dtype, evidence: str) -> None:
    sent = {
        name: {key: tensor.to(kind) for key, tensor in state(model).items()}
        for name, model in CLIENTS.items()
    }
    audit_settings = SETTINGS | {"evidence": evidence}
    rounded = {name: {key: tensor.float() for key, tensor in each.items()} for name, each in sent.items()}
    start = copy.deepcopy(START).to(kind)
    whole = celm.audit(copy.deepcopy(start).float(), rounded, **audit_settings)
    for result in (
        celm.audit(start, sent, **audit_settings),
        celm.audit(start, sent, **audit_settings | {"model": start}),
    ):
        assert result.scores == pytest.approx(whole.scores)
        assert result.evidence == whole.evidence


@pytest.mark.parametrize("act", ["rewrite", "truncate", "remove"])
def test_a_file_that_changes_after_its_probe_excludes_its_client_only(tmp_path: Path, act: str) -> None:
    start, clients = save_files(tmp_path)
    (clients / "rider.safetensors").unlink()
    file = clients / "b.safetensors"
    kept = file.read_bytes()
    file.unlink()
    honest = celm.audit(start, clients, **SETTINGS)
    file.write_bytes(kept)

    def change(done: int, total: int) -> None:
        if done == total:
            if act == "rewrite":
                save_file(state(CLIENTS["c"]), file)
            elif act == "truncate":
                file.write_bytes(kept[:50])
            else:
                file.unlink()

    result = celm.audit(start, clients, **SETTINGS, out=tmp_path / "audit", watch=change)
    assert result.excluded == {"b": "model changed while it was audited"}
    assert result.scores == honest.scores
    assert result.document["movement"] == honest.document["movement"]
    (entry,) = [entry for entry in result.files if entry["client"] == "b"]
    assert entry["sha256"] is None
    assert verify_audit(tmp_path / "audit") == []


def test_a_strict_audit_ends_at_a_file_that_changes_after_its_probe(tmp_path: Path) -> None:
    start, clients = save_files(tmp_path)

    def change(done: int, total: int) -> None:
        if done == total:
            (clients / "b.safetensors").unlink()

    with pytest.raises(CelmError, match="b: model changed"):
        celm.audit(start, clients, **SETTINGS, strict=True, watch=change)


def test_an_audit_in_which_every_file_changes_names_one(tmp_path: Path) -> None:
    start, clients = save_files(tmp_path)

    def change(done: int, total: int) -> None:
        if done == total:
            for name in ("a", "b", "c", "rider"):
                (clients / f"{name}.safetensors").unlink()

    with pytest.raises(CelmError, match="no client can be audited; first client a: model changed"):
        celm.audit(start, clients, **SETTINGS, watch=change)
