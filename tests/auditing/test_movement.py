"""Who did not train: a copy of the global model has no evidence and is flagged, however it is scaled."""

from __future__ import annotations

import copy
import json
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
from celm.auditing.settings import Settings
from celm.base.errors import CelmError
from celm.method.movement import IDLE, movement
from celm.method.probe import model_noise, probe
from celm.method.stacking import Stack
from celm.models import build_model

State = dict[str, Tensor]
HOW: dict[str, Any] = {
    "model": "mlp", "options": {"widths": WIDTHS}, "input_shape": SHAPE, "classes": CLASSES,
    "probe": {"steps": 30}, "evidence": "calibrated",
}  # fmt: skip


def network(seed: int = 0) -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return build_model("mlp", {"widths": WIDTHS}, SHAPE, CLASSES)


def trained(start: nn.Module, classes: Sequence[int], steps: int = 60) -> nn.Module:
    """Honest work on samples of these classes."""
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
    """The global model with a little noise, its head multiplied."""
    draw = torch.Generator().manual_seed(1)
    made = {
        name: tensor + noise * torch.randn(tensor.shape, generator=draw)
        for name, tensor in state(START).items()
    }
    return {name: factor * tensor if name.startswith("head.") else tensor for name, tensor in made.items()}


@pytest.mark.parametrize("factor", [1.0, 10.0, 100.0])
def test_a_scaled_copy_of_the_global_model_is_flagged_and_scores_nothing(factor: float) -> None:
    honest = celm.audit(START, CLIENTS, **HOW)
    found = celm.audit(START, {**CLIENTS, "rider": copied(factor)}, **HOW)
    assert list(found.flags) == ["rider"]
    assert found.flags["rider"].startswith("did not train: it moved by 0.")
    assert found.scores["rider"] == found.weights["rider"] == 0
    assert found.holds is not None
    assert found.holds["rider"] == []
    assert found.sole_holders == honest.sole_holders
    assert {name: found.scores[name] for name in CLIENTS} == pytest.approx(honest.scores)
    moved = found.document["movement"]
    assert moved["rider"] < IDLE < min(moved[name] for name in CLIENTS)


def test_without_the_look_it_would_pass() -> None:
    found = celm.audit(START, {**CLIENTS, "rider": copied(10)}, **HOW | {"movement": False})
    assert found.scores["rider"] > 0.1
    assert found.document["movement"] is None
    plain = celm.audit(START, {**CLIENTS, "rider": copied(10)}, **HOW | {"evidence": "paper"})
    assert plain.document["movement"] is None


def test_honest_clients_are_not_flagged_and_lose_nothing() -> None:
    found, before = (celm.audit(START, CLIENTS, **HOW | {"movement": look}) for look in (True, False))
    assert found.flags == {}
    for key in ("scores", "evidence", "holds", "sole_holders"):
        assert found.document[key] == before.document[key]


def test_alone_there_is_nobody_to_compare_with() -> None:
    found = celm.audit(START, {"a": CLIENTS["a"]}, **HOW)
    assert found.document["movement"] == {"a": None}
    assert found.flags == {}


def test_an_unchanged_copy_is_called_that() -> None:
    found = celm.audit(START, {**CLIENTS, "rider": START}, **HOW)
    assert found.flags == {"rider": "returned the model it was given, unchanged"}
    assert found.scores["rider"] == 0


def test_movement_is_that_of_the_methods_own_function() -> None:
    sent = {**{name: state(model) for name, model in CLIENTS.items()}, "rider": copied(3, 0.05)}
    ours = celm.audit(START, sent, **HOW | {"starts": 2}).document["movement"]
    noise = model_noise(42, "start-0", CLASSES, SHAPE)[None]
    ended = probe(
        Stack(network(), [state(START)]), noise, CLASSES, steps=30, seed=42, calibrated=True
    ).inputs[0]
    stacks = Stack(network(), [state(START)] * 4), Stack(network(), list(sent.values()))
    assert ours == pytest.approx(
        dict(zip(sent, movement(*stacks, ended, 42).tolist(), strict=True)), rel=1e-3
    )


def test_what_adapters_wrap_is_looked_at_too() -> None:
    found = celm.audit(START, {**CLIENTS, "rider": copied(10)}, **HOW | {"bounds": [-3, 3]})
    assert list(found.flags) == ["rider"]


def save_all(folder: Path, start: nn.Module, clients: dict[str, State]) -> None:
    folder.mkdir(parents=True)
    for name, tensors in {"global": state(start), **clients}.items():
        save_file(tensors, folder / f"{name}.safetensors")


def test_to_move_as_the_global_model_did_is_no_training(tmp_path: Path) -> None:
    """A client of the second round that takes the first round's change once more."""
    first = {name: state(model) for name, model in CLIENTS.items()}
    after = copy.deepcopy(START)
    after.load_state_dict({name: sum(each[name] for each in first.values()) / 3 for name in first["a"]})  # type: ignore[misc]
    replayed = {name: tensor + 0.7 * (tensor - state(START)[name]) for name, tensor in state(after).items()}
    second = {
        name: state(trained(after, held)) for name, held in {"a": [0, 1], "b": [1, 2], "c": [2, 0]}.items()
    }
    save_all(tmp_path / "clients" / "round-1", START, first)
    save_all(tmp_path / "clients" / "round-2", after, second | {"rider": replayed})
    found = celm.audit(tmp_path / "clients" / "round-1" / "global.safetensors", tmp_path / "clients", **HOW)
    assert found.rounds[0]["flags"] == {}
    assert list(found.flags) == ["rider"]
    assert found.document["movement"]["rider"] == pytest.approx(0, abs=1e-3)
    assert found.weights["rider"] == 0


def files(place: Path) -> tuple[Path, Path]:
    save_all(place / "clients", START, {name: state(model) for name, model in CLIENTS.items()})
    save_file(copied(10), place / "clients" / "rider.safetensors")
    return place / "clients" / "global.safetensors", place / "clients"


def test_the_ledger_of_such_an_audit_verifies(uploads: Uploads) -> None:
    (uploads.place / "more").mkdir()
    found = celm.audit(*files(uploads.place / "more"), **HOW, out=uploads.place / "audit")
    assert list(found.flags) == ["rider"]
    assert uploads.invoke("audit-verify", "audit", "--full").exit_code == 0


def test_older_ledgers_which_know_no_look_still_verify(uploads: Uploads) -> None:
    (uploads.place / "more").mkdir()
    found = celm.audit(*files(uploads.place / "more"), **HOW, movement=False, out=uploads.place / "audit")
    assert "rider" not in found.flags
    path = uploads.place / "audit" / "ledger.json"
    ledger = json.loads(path.read_text())
    del ledger["settings"]["movement"]
    path.write_text(json.dumps(ledger))
    assert uploads.invoke("audit-verify", "audit", "--full").exit_code == 0


def test_an_audit_taken_up_again_looks_too(tmp_path: Path) -> None:
    start, clients = files(tmp_path)
    whole = celm.audit(start, clients, **HOW, out=tmp_path / "whole")

    def stop(done: int, total: int) -> None:
        if done == total - 1:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        celm.audit(start, clients, **HOW, out=tmp_path / "again", watch=stop)
    again = celm.audit(start, clients, **HOW, out=tmp_path / "again")
    assert again.document == whole.document


def test_a_file_that_changes_between_probe_and_look_ends_the_audit(tmp_path: Path) -> None:
    start, clients = files(tmp_path)

    def meddle(done: int, total: int) -> None:
        if done == total:
            save_file(copied(2), clients / "a.safetensors")

    with pytest.raises(CelmError, match="a: changed while it was audited"):
        celm.audit(start, clients, **HOW, watch=meddle)


def test_the_look_is_a_setting_that_probes_do_not_depend_on() -> None:
    assert Settings.parse({"classes": ["0"]}).movement
    assert not Settings.parse({"classes": ["0"]}).looks
    assert Settings.parse({"classes": ["0"], "evidence": "calibrated"}).looks


@pytest.mark.parametrize("kind", [torch.float64, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("evidence", ["paper", "calibrated"])
def test_models_of_any_precision_are_audited_in_float32(kind: torch.dtype, evidence: str) -> None:
    sent = {
        name: {key: tensor.to(kind) for key, tensor in state(model).items()}
        for name, model in CLIENTS.items()
    }
    how = HOW | {"evidence": evidence}
    rounded = {name: {key: tensor.float() for key, tensor in each.items()} for name, each in sent.items()}
    start = copy.deepcopy(START).to(kind)
    whole = celm.audit(copy.deepcopy(start).float(), rounded, **how)
    for found in (celm.audit(start, sent, **how), celm.audit(start, sent, **how | {"model": start})):
        assert found.scores == pytest.approx(whole.scores)
        assert found.evidence == whole.evidence
