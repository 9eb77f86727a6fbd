"""Relative movement against a direct computation, and what does not count as training."""

from __future__ import annotations

import math
import weakref
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn import functional as F

from celm.core.calibration import shared_noise
from celm.core.idle_detection import (
    IDLE_THRESHOLD,
    is_idle,
    median,
    relative_movement,
    relative_to_median,
)
from celm.core.model_stack import ModelStack
from celm.core.own_update import own_update

FEATURES, CLASSES = 20, 4
INPUTS = torch.randn(CLASSES, FEATURES, generator=torch.Generator().manual_seed(5))
State = dict[str, Tensor]


def network() -> nn.Sequential:
    return nn.Sequential(nn.Linear(FEATURES, 16), nn.ReLU(), nn.Dropout(0.5), nn.Linear(16, CLASSES))


def trained(start: State, seed: int, steps: int = 20) -> State:
    """Train on the client's own data, in which some classes are more frequent."""
    module = network().eval()
    module.load_state_dict(start)
    draw = torch.Generator().manual_seed(seed)
    y = torch.randint(0, 2, (128,), generator=draw) + seed % 3
    x = torch.randn(128, FEATURES, generator=draw) + 2 * F.one_hot(y, FEATURES)
    optimiser = torch.optim.SGD(module.parameters(), lr=0.1)
    for _ in range(steps):
        optimiser.zero_grad()
        F.cross_entropy(module(x), y).backward()
        optimiser.step()
    return {name: tensor.detach().clone() for name, tensor in module.state_dict().items()}


def average(models: Sequence[State]) -> State:
    return {name: torch.stack([model[name] for model in models]).mean(0) for name in models[0]}


def global_models() -> list[State]:
    """Return the global models of four rounds of federated averaging, the initial model first."""
    torch.manual_seed(0)
    result = [{name: tensor.clone() for name, tensor in network().state_dict().items()}]
    for number in range(4):
        result.append(average([trained(result[-1], 10 * number + client) for client in range(4)]))
    return result


PAST = global_models()
NOW = PAST[-1]
HONEST = [trained(NOW, 100 + client) for client in range(4)]


def moved(
    *sent: State, past: Sequence[State] = PAST, start: State = NOW, batch_size: int | None = None
) -> list[float]:
    module = network().train()
    stacks = ModelStack(module, [start] * len(sent)), ModelStack(module, sent)
    result = relative_movement(*stacks, INPUTS, 7, past, batch_size)
    assert module.training
    return result.tolist()


def scaled(state: State, by: float, prefix: str = "") -> State:
    return {name: by * tensor if name.startswith(prefix) else tensor for name, tensor in state.items()}


def replayed(by: float, since: int, until: int = -1) -> State:
    return {name: tensor + by * (PAST[until][name] - PAST[since][name]) for name, tensor in NOW.items()}


def noisy(by: float) -> State:
    """Add noise in units of an honest client's update, tensor by tensor."""
    draw = torch.Generator().manual_seed(3)
    return {
        name: tensor
        + by * (HONEST[0][name] - tensor).square().mean().sqrt() * torch.randn(tensor.shape, generator=draw)
        for name, tensor in NOW.items()
    }


def rows_scaled(state: State) -> State:
    by = torch.tensor([1.5, 0.5]).repeat(8)[:, None]
    return {**state, "0.weight": by * state["0.weight"]}


def rewritten(state: State) -> State:
    """Return the same function in other weights."""
    by = torch.tensor([2.0, 0.5]).repeat(8)
    return {
        **state,
        "0.weight": by[:, None] * state["0.weight"],
        "0.bias": by * state["0.bias"],
        "3.weight": state["3.weight"] / by,
    }


IDLE_UPLOADS = {
    "plain": NOW,
    "a larger head": scaled(NOW, 10, "3."),
    "all larger": scaled(NOW, 1.3),
    "all smaller": scaled(NOW, 0.8),
    "rows": rows_scaled(NOW),
    "rows and a larger head": scaled(rows_scaled(NOW), 10, "3."),
    "the same function": rewritten(NOW),
    "the last change": replayed(1, -2),
    "the last change, strong": replayed(5, -2),
    "the change before": replayed(3, -3, -2),
    "all changes": replayed(1, 0),
    "all changes, all larger": scaled(replayed(1, 0), 1.3),
}


@pytest.mark.parametrize("name", IDLE_UPLOADS)
def test_a_client_that_does_not_train_is_idle(name: str) -> None:
    result = moved(*HONEST, IDLE_UPLOADS[name])
    assert result[-1] < 0.05
    assert min(result[:-1]) > 2 * IDLE_THRESHOLD


@pytest.mark.parametrize("by", [0.1, 1.0, 3.0, 100.0])
def test_noise_of_any_size_moves_less_than_training(by: float) -> None:
    """In so small a network noise moves more than in a real one; but no more if there is more of it."""
    result = moved(*HONEST, noisy(by))
    assert result[-1] < 0.75 * min(result[:-1])
    assert result[-1] <= moved(*HONEST, noisy(1.0))[-1] * 1.05


def test_little_training_is_training() -> None:
    assert min(moved(*HONEST, trained(NOW, 200, steps=2))) > 2 * IDLE_THRESHOLD


def by_hand(start: State, sent: State) -> float:
    """Return m of one client."""
    result = []
    for one in (start, sent):
        module = network().eval()
        module.load_state_dict(one)
        noise = module(shared_noise(7, 1, (FEATURES,))[0]).detach().double()
        spread = math.sqrt(float((noise.std(0) ** 2).mean()))
        logits = (module(INPUTS).detach().double() - noise.mean(0)) / spread
        result.append(logits - logits.mean(1, keepdim=True))
    return math.sqrt(float(((result[1] - result[0]) ** 2).mean()))


def own_by_hand(start: State, sent: State, past: Sequence[State], medians: dict[str, float]) -> State:
    """Return v + ρ δ by one least-squares fit, with the rows of v and the global updates as columns."""
    own_model = dict(start)
    for name, norm in medians.items():
        v, step = start[name].double(), (sent[name].double() - start[name].double())
        along_rows = [torch.zeros_like(v) for _ in v]
        for column, row in zip(along_rows, range(len(v)), strict=True):
            column[row] = v[row]
        changes = [past[-1][name].double() - model[name].double() for model in past[:-1]]
        columns = torch.stack([column.flatten() for column in (*along_rows, *changes)], dim=1)
        fit = torch.linalg.lstsq(columns, step.flatten()[:, None], driver="gelsd").solution
        residual = (step.flatten() - (columns @ fit).flatten()).view_as(v)
        own_model[name] = (v + min(10, norm / residual.norm().item()) * residual).float()
    return own_model


def test_equals_a_computation_by_least_squares() -> None:
    names = ("0.weight", "3.weight")
    steps = {
        name: [
            own_update(
                NOW[name], model[name], [NOW[name].double() - past[name].double() for past in PAST[:-1]]
            )
            for model in HONEST
        ]
        for name in names
    }
    medians = {name: median(torch.stack([step.norm() for step in steps[name]])) for name in names}
    own_changes = [by_hand(NOW, own_by_hand(NOW, model, PAST, medians)) for model in HONEST]
    changes = [by_hand(NOW, model) for model in HONEST]
    middle = [sum(sorted(values)[1:3]) / 2 for values in (own_changes, changes)]
    expected = [min(n / middle[0], 10 * m / middle[1]) for n, m in zip(own_changes, changes, strict=True)]
    assert moved(*HONEST) == pytest.approx(expected, rel=1e-3)


def test_batches_of_clients_give_the_same() -> None:
    assert moved(*HONEST, NOW, batch_size=2) == pytest.approx(moved(*HONEST, NOW), abs=1e-5)


def test_in_the_first_round_there_is_no_update_to_repeat() -> None:
    sent = [trained(PAST[0], seed) for seed in range(3)]
    result = moved(*sent, PAST[0], past=PAST[:1], start=PAST[0])
    assert result == pytest.approx(moved(*sent, PAST[0], past=[], start=PAST[0]))
    assert result[-1] == 0
    assert min(result[:-1]) > 2 * IDLE_THRESHOLD


def test_buffers_and_flags_of_a_model_do_not_count() -> None:
    class Flagged(nn.Sequential):
        def __init__(self) -> None:
            super().__init__(nn.Linear(FEATURES, CLASSES), nn.BatchNorm1d(CLASSES))
            self.register_buffer("mask", torch.tensor([True, False]))

    module = Flagged()
    one = {name: tensor.clone() for name, tensor in module.state_dict().items()}
    counted = {**one, "1.num_batches_tracked": torch.tensor(7), "1.running_var": 5 * one["1.running_var"]}
    works = {**counted, "0.weight": one["0.weight"] + torch.eye(CLASSES, FEATURES)}
    past = [{**one, "0.weight": one["0.weight"] - 1, "1.running_var": 9 * one["1.running_var"]}, one]
    result = relative_movement(
        ModelStack(module, [one] * 3), ModelStack(module, [works, works, counted]), INPUTS, 7, past
    )
    assert result[0] > 0.5
    assert result[2] == 0


def test_scaling_before_a_normalisation_is_not_training() -> None:
    """Rows before it are scaled, and its statistics to match: the same function, though δ is not 0."""
    module = nn.Sequential(nn.Linear(FEATURES, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, CLASSES))
    torch.manual_seed(2)
    one = {name: tensor.clone() for name, tensor in module.state_dict().items()}
    by = torch.tensor([2.0, 0.5]).repeat(8)
    same = {
        **one,
        "0.weight": by[:, None] * one["0.weight"],
        "0.bias": by * one["0.bias"],
        "1.running_mean": by * one["1.running_mean"],
        "1.running_var": by**2 * one["1.running_var"],
    }
    works = [
        {name: t + 0.1 * torch.randn(t.shape) if t.ndim > 1 else t for name, t in one.items()}
        for _ in range(3)
    ]
    result = relative_movement(ModelStack(module, [one] * 4), ModelStack(module, [*works, same]), INPUTS, 7)
    assert result[-1] < 0.01
    assert min(result[:-1]) > 2 * IDLE_THRESHOLD


def test_tied_weights_move_together() -> None:
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.one = nn.Linear(FEATURES, FEATURES, bias=False)
            self.other = nn.Linear(FEATURES, FEATURES, bias=False)
            self.other.weight = self.one.weight

        def forward(self, x: Tensor) -> Tensor:
            out: Tensor = self.other(torch.relu(self.one(x)))
            return out

    class Apart(Tied):
        def __init__(self) -> None:
            super().__init__()
            self.other = nn.Linear(FEATURES, FEATURES, bias=False)

    torch.manual_seed(1)
    inputs = torch.randn(FEATURES, FEATURES)
    models = [torch.randn(FEATURES, FEATURES) for _ in range(4)]
    states = [{"one.weight": weight, "other.weight": weight} for weight in models]
    result = [
        relative_movement(ModelStack(module, states[:1] * 3), ModelStack(module, states[1:]), inputs, 7)
        for module in (Tied(), Apart())
    ]
    torch.testing.assert_close(*result, rtol=1e-4, atol=1e-4)


def test_one_absurd_upload_does_not_hide_an_idle_client() -> None:
    absurd = {name: torch.full_like(tensor, 3e38) for name, tensor in NOW.items()}
    result = moved(*HONEST, NOW, absurd)
    assert is_idle(torch.tensor(result)).tolist()[:5] == [False] * 4 + [True]


@given(st.lists(st.floats(0, 1e6), min_size=1, max_size=9))
def test_at_least_the_upper_half_of_the_clients_that_moved_are_not_idle(lengths: list[float]) -> None:
    result = is_idle(relative_to_median(torch.tensor(lengths, dtype=torch.float64)))
    moved = [idle for idle, length in zip(result.tolist(), lengths, strict=True) if length]
    assert sum(moved) <= len(moved) // 2


def test_three_of_five_copies_are_idle() -> None:
    result = moved(*HONEST[:2], NOW, NOW, NOW)
    assert is_idle(torch.tensor(result)).tolist() == [False, False, True, True, True]


def test_linearly_dependent_global_updates_remove_nothing_more() -> None:
    torch.manual_seed(0)
    one, two, first, second = torch.randn(4, 3, 2, dtype=torch.float64)
    once = own_update(one, two, [first, second])
    for changes in ([first, first, second], [first, 2 * first, first - second, second]):
        torch.testing.assert_close(own_update(one, two, changes), once)


@given(st.lists(st.floats(1e-3, 1e3), min_size=1, max_size=9), st.floats(0.01, 100))
def test_movement_does_not_depend_on_the_unit(lengths: list[float], unit: float) -> None:
    one = torch.tensor(lengths, dtype=torch.float64)
    torch.testing.assert_close(relative_to_median(one), relative_to_median(unit * one), equal_nan=True)


def test_of_two_clients_one_may_be_idle() -> None:
    assert is_idle(relative_to_median(torch.tensor([0.0, 1.0]))).tolist() == [True, False]
    assert is_idle(relative_to_median(torch.tensor([0.3, 1.0]))).tolist() == [False, False]


def test_no_client_is_idle_if_none_moved_and_nonfinite_ones_are() -> None:
    assert is_idle(relative_to_median(torch.zeros(3))).tolist() == [False] * 3
    assert relative_to_median(torch.zeros(3)).isnan().all()
    assert is_idle(relative_to_median(torch.tensor([1.0, math.nan, 2.0]))).tolist() == [False, True, False]
    assert is_idle(relative_to_median(torch.tensor([math.nan, math.inf]))).tolist() == [False, False]


class Reading(Sequence[State]):
    """Models that are read on access; counts how many are in memory."""

    class Read(dict[str, Tensor]):
        __hash__ = object.__hash__  # type: ignore[assignment]

    def __init__(self, states: Sequence[State]) -> None:
        self.states = states
        self.alive: weakref.WeakSet[Reading.Read] = weakref.WeakSet()
        self.most = 0

    def __len__(self) -> int:
        return len(self.states)

    def read(self, state: State) -> State:
        result = Reading.Read(state)
        self.alive.add(result)
        self.most = max(self.most, len(self.alive))
        return result

    def __getitem__(self, which: Any) -> Any:
        chosen = self.states[which]
        return list(map(self.read, chosen)) if isinstance(which, slice) else self.read(chosen)


def test_few_models_that_are_read_on_access_are_in_memory() -> None:
    sent = [*HONEST, *(trained(NOW, 200 + client) for client in range(4))]
    reading, module = Reading(sent), network()
    result = relative_movement(
        ModelStack(module, [NOW] * 8), ModelStack(module, reading), INPUTS, 7, PAST, batch_size=2
    )
    assert result.tolist() == moved(*sent, batch_size=2)
    assert reading.most <= 3
