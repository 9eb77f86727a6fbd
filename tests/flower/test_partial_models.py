"""Clients that exchange a part of the model: matching by name, the frozen rest, the folder; adapters of the probe."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("flwr", reason="Flower is not installed: pip install 'celm[flower]'")

import torch
from flwr.app import Array, ArrayRecord, Message
from safetensors import safe_open
from torch import Tensor, nn

from celm.base.errors import CelmError
from celm.flower import ContributionResult, ContributionStrategy
from celm.report.build import build_report
from celm.rules import rules
from support.small_grid import Client, SmallGrid, arrays_of, learner, network, reply

SENT = ("3.weight", "3.bias")
SHIFTS = {"a": 0.1, "b": -0.2, "c": 0.3}


def part(model: nn.Module, names: tuple[str, ...] = SENT) -> ArrayRecord:
    state = model.state_dict()
    return ArrayRecord({name: state[name] for name in names})


def head_learner(shift: float) -> Client:
    """Return a client that moves every second value of the head and returns all that it was sent."""

    def train(message: Message) -> Message:
        state = arrays_of(message)
        for name in SENT:
            state[name].view(-1)[::2] += shift
        return reply(message, ArrayRecord(state), num_examples=3, examined_accuracy=0.5)

    return train


def clients() -> dict[str, Client]:
    return {name: head_learner(shift) for name, shift in SHIFTS.items()}


def strategy(
    folder: Path | None = None, model: nn.Module | None = None, **settings: Any
) -> ContributionStrategy:
    usual: dict[str, Any] = {"fraction_evaluate": 0.0, "retries": 0, "partial": True}
    usual |= {"rule": "celm", "probe": {"steps": 5}, "preset": None}
    return ContributionStrategy(
        model=model or network(), input_shape=(6,), classes=3, folder=folder, **{**usual, **settings}
    )


def run(rule: ContributionStrategy, arrays: ArrayRecord, rounds: int = 3, **more: Any) -> ContributionResult:
    return rule.start(SmallGrid(clients()), arrays, num_rounds=rounds, **more)


def held_out() -> tuple[Tensor, Tensor]:
    rng = torch.Generator().manual_seed(5)
    return torch.randn(30, 6, generator=rng), torch.randint(3, (30,), generator=rng)


@pytest.mark.parametrize("preset", [None, "trust"])
@pytest.mark.parametrize("rule", rules.names())
def test_every_rule_weighs_a_part_as_it_weighs_complete_models(rule: str, preset: str | None) -> None:
    settings = {"rule": rule, "preset": preset, "validation": held_out()}
    partial = run(strategy(**settings), part(network()))
    complete = run(strategy(**settings, partial=False), ArrayRecord(network().state_dict()))
    for number, weights in complete.contributions.items():
        assert partial.contributions[number] == pytest.approx(weights, abs=1e-5)
        for client, row in complete.evidence.get(number, {}).items():
            assert partial.evidence[number][client] == pytest.approx(row, abs=1e-5)
    assert list(partial.arrays) == list(SENT)
    whole = complete.arrays.to_torch_state_dict()
    for name, tensor in partial.arrays.to_torch_state_dict().items():
        torch.testing.assert_close(tensor, whole[name])


def test_the_values_of_the_model_are_those_of_the_frozen_part() -> None:
    other = network()
    with torch.no_grad():
        other[1].weight.mul_(-3)  # type: ignore[index, union-attr, operator]
    arrays = part(network())
    evidence = [run(strategy(model=model), arrays, 1).evidence[1] for model in (network(), other)]
    assert evidence[0] != evidence[1]
    with torch.no_grad():
        other = network()
        other[3].weight.mul_(-3)  # type: ignore[index, union-attr, operator]
    assert run(strategy(model=other), arrays, 1).evidence[1] == evidence[0]


def interrupted(number: int) -> Any:
    def evaluate(round_number: int, _: ArrayRecord) -> None:
        if round_number == number:
            raise KeyboardInterrupt

    return evaluate


def test_the_folder_holds_the_part_alone_and_a_killed_server_resumes(tmp_path: Path) -> None:
    options = {"rule_options": {"warmup": 4, "evidence": "calibrated"}}
    whole = run(strategy(**options), part(network()), 5)
    with pytest.raises(KeyboardInterrupt):
        run(strategy(tmp_path, **options), part(network()), 5, evaluate_fn=interrupted(3))
    result = run(strategy(tmp_path, **options), part(network()), 5)
    assert result.contributions == whole.contributions
    for mine, other in zip(result.records, whole.records, strict=True):
        assert mine["received"] == other["received"]
        assert (mine["start"], mine["model"]) == (other["start"], other["model"])
    shapes = [list(tensor.shape) for tensor in network()[1].state_dict().values()]  # type: ignore[index]
    for path in (tmp_path / "checkpoints").iterdir():
        with safe_open(path, "pt") as saved:
            assert all(saved.get_slice(name).get_shape() not in shapes for name in saved.keys())  # noqa: SIM118
    settings = json.loads((tmp_path / "settings.json").read_text())
    assert list(settings["model"]) == list(SENT)
    assert settings["head"] == list(SENT)
    assert settings["frozen"]["tensors"] == 2
    assert settings["frozen"]["sha256"] in build_report(tmp_path)


def test_a_folder_belongs_to_one_frozen_part(tmp_path: Path) -> None:
    run(strategy(tmp_path), part(network()), 1)
    other = network()
    with torch.no_grad():
        other[3].bias.add_(1)  # type: ignore[index, union-attr, operator]
    run(strategy(tmp_path, model=other), part(network()), 1)  # its own values of what is sent do not matter
    with torch.no_grad():
        other[1].bias.add_(1)  # type: ignore[index, union-attr, operator]
    with pytest.raises(CelmError, match="other settings"):
        run(strategy(tmp_path, model=other), part(network()), 1)


def test_a_part_must_be_announced() -> None:
    with pytest.raises(CelmError, match=r"2, but the model has 4 tensors.*partial=True"):
        run(strategy(partial=False), part(network()))


def renamed(arrays: ArrayRecord, **names: str) -> ArrayRecord:
    return ArrayRecord({names.get(name.replace(".", "_"), name): array for name, array in arrays.items()})


@pytest.mark.parametrize(
    ("arrays", "reason"),
    [
        (ArrayRecord([array.numpy() for array in part(network()).values()]), "no tensor '0'.*state_dict"),
        (renamed(part(network()), **{"3_bias": "3.offset"}), r"no tensor '3\.offset'"),
        (ArrayRecord({"3.bias": torch.zeros(4)}), r"'3\.bias': expected shape \(3,\)"),
        (ArrayRecord({"3.bias": torch.tensor([0.0, float("nan"), 0.0])}), r"'3\.bias': 1 of 3 values"),
        (ArrayRecord({}), "there are none"),
    ],
)
def test_initial_arrays_that_do_not_fit_are_refused_by_name(arrays: ArrayRecord, reason: str) -> None:
    with pytest.raises(CelmError, match=reason):
        run(strategy(), arrays)


class Low(nn.Module):
    """Two layers of one shape: their order cannot be told from shapes."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.head = nn.Linear(6, 6), nn.Linear(6, 6), nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.head(torch.tanh(self.second(torch.tanh(self.first(x)))))
        return out


LAYERS = ("first.bias", "second.bias", "head.bias")


def as_received(change: Any) -> Client:
    """Return a client that makes a reply from the arrays that it was sent."""
    return lambda message: reply(message, change(dict(message.content["arrays"].items())))


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda arrays: ArrayRecord(dict(reversed(arrays.items()))), None),
        (lambda arrays: ArrayRecord({f"_orig_mod.{name}": array for name, array in arrays.items()}), None),
        (lambda arrays: ArrayRecord([array.numpy() for array in arrays.values()]), "'first.bias' is missing"),
        (
            lambda arrays: ArrayRecord(
                {**{k: arrays[k] for k in LAYERS[1:]}, "first.bia": arrays[LAYERS[0]]}
            ),
            "'first.bias' is missing; unexpected array 'first.bia'",
        ),
        (
            lambda arrays: ArrayRecord({**arrays, "first.weight": Array(torch.ones(6, 6).numpy())}),
            "'first.weight'",
        ),
        (lambda arrays: ArrayRecord({name: arrays[name] for name in LAYERS[:2]}), "'head.bias' is missing"),
        (
            lambda arrays: ArrayRecord({**arrays, "head.bias": arrays["first.bias"]}),
            r"'head.bias': expected shape",
        ),
    ],
    ids=[
        "any order",
        "a wrapper's names",
        "no names",
        "another name",
        "a frozen one",
        "one too few",
        "shape",
    ],
)
def test_replies_are_matched_by_name_only(change: Any, reason: str | None) -> None:
    grid = SmallGrid({"a": learner(0.1), "b": learner(0.3), "c": as_received(change)})
    torch.manual_seed(0)
    model = Low()
    result = strategy(model=model).start(grid, part(model, LAYERS), num_rounds=1)
    (record,) = result.records
    if reason is None:
        assert record["excluded"] == {}
        sent = grid.sent[-1].content["arrays"].to_torch_state_dict()
        merged = result.arrays.to_torch_state_dict()
        moved = 0.1 * record["weights"]["a"] + 0.3 * record["weights"]["b"]
        for name in LAYERS:
            torch.testing.assert_close(merged[name], sent[name] + moved)
    else:
        assert reason.replace("\\", "") in record["excluded"]["c"]


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(6, 6)
        self.head = nn.Linear(6, 3)
        self.output = self.head

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.output(torch.tanh(self.first(x)))
        return out


def test_a_tied_tensor_may_be_sent_under_a_later_name() -> None:
    torch.manual_seed(0)
    model = Tied()
    results = []
    for layer in ("head", "output"):
        grid = SmallGrid({name: learner(shift) for name, shift in SHIFTS.items()})
        arrays = part(model, (f"{layer}.weight", f"{layer}.bias"))
        results.append(strategy(model=model).start(grid, arrays, num_rounds=2))
        assert list(results[-1].arrays) == [f"{layer}.weight", f"{layer}.bias"]
        assert arrays_of(grid.sent[-1]).keys() == {f"{layer}.weight", f"{layer}.bias"}
    assert results[0].evidence == results[1].evidence
    assert results[0].contributions == results[1].contributions


def test_a_rule_that_reads_the_last_layer_needs_it() -> None:
    with pytest.raises(CelmError, match=r"'shapfed' needs the whole last layer: '3\.weight'"):
        run(strategy(rule="shapfed"), part(network(), ("1.weight", "3.bias")))


def test_without_the_head_there_is_none_to_keep_local() -> None:
    grid = SmallGrid({name: learner(shift) for name, shift in SHIFTS.items()})
    result = strategy(rule_options={"warmup": 3}).start(grid, part(network(), ("1.weight",)), num_rounds=3)
    last = [arrays_of(message)["1.weight"] for message in grid.sent[-3:]]
    assert torch.equal(last[0], last[1])
    assert result.evidence[3]


@pytest.fixture
def flower_log(caplog: pytest.LogCaptureFixture) -> Iterator[pytest.LogCaptureFixture]:
    logger = logging.getLogger("flwr")
    logger.addHandler(caplog.handler)
    yield caplog
    logger.removeHandler(caplog.handler)


def test_tensors_that_clients_may_change_but_do_not_send_are_named(
    flower_log: pytest.LogCaptureFixture,
) -> None:
    model = nn.Sequential(nn.Linear(6, 4), nn.BatchNorm1d(4), nn.Linear(4, 3))
    model[0].requires_grad_(False)
    grid = SmallGrid({name: learner(shift) for name, shift in SHIFTS.items()})
    strategy(model=model).start(grid, part(model, ("2.weight", "2.bias")), num_rounds=1)
    warnings = [line.getMessage() for line in flower_log.records if line.levelno == logging.WARNING]
    assert any("'1.weight' and 1 more: trainable" in line for line in warnings)
    assert any("'1.running_mean' and 1 more: a buffer" in line for line in warnings)
    flower_log.clear()
    model[1] = nn.Identity()
    strategy(model=model).start(grid, part(model, ("2.weight", "2.bias")), num_rounds=1)
    warnings = [line.getMessage() for line in flower_log.records if line.levelno == logging.WARNING]
    assert not [line for line in warnings if "not sent by clients" in line]


def test_a_frozen_part_in_half_precision_is_probed_in_float32() -> None:
    half = network().half()
    rounded = network().half().float()
    results = [run(strategy(model=model), part(rounded), 2) for model in (half, rounded)]
    assert results[0].evidence == results[1].evidence
