"""Movement of a model, against a plain computation, and what does not count as work."""

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

from celm.method.calibration import common_noise
from celm.method.movement import IDLE, idle, median, movement, own_step, relative
from celm.method.stacking import Stack

FEATURES, CLASSES = 20, 4
INPUTS = torch.randn(CLASSES, FEATURES, generator=torch.Generator().manual_seed(5))
State = dict[str, Tensor]


def network() -> nn.Sequential:
    return nn.Sequential(nn.Linear(FEATURES, 16), nn.ReLU(), nn.Dropout(0.5), nn.Linear(16, CLASSES))


def trained(start: State, seed: int, steps: int = 20) -> State:
    """Honest work on data of one's own, of which some classes are more frequent."""
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
    """What four rounds of federated averaging come to, the initial model first."""
    torch.manual_seed(0)
    found = [{name: tensor.clone() for name, tensor in network().state_dict().items()}]
    for number in range(4):
        found.append(average([trained(found[-1], 10 * number + client) for client in range(4)]))
    return found


PAST = global_models()
NOW = PAST[-1]
HONEST = [trained(NOW, 100 + client) for client in range(4)]


def moved(
    *sent: State, past: Sequence[State] = PAST, start: State = NOW, at_once: int | None = None
) -> list[float]:
    module = network().train()
    stacks = Stack(module, [start] * len(sent)), Stack(module, sent)
    found = movement(*stacks, INPUTS, 7, past, at_once)
    assert module.training
    return found.tolist()


def scaled(state: State, by: float, prefix: str = "") -> State:
    return {name: by * tensor if name.startswith(prefix) else tensor for name, tensor in state.items()}


def replayed(by: float, since: int, until: int = -1) -> State:
    return {name: tensor + by * (PAST[until][name] - PAST[since][name]) for name, tensor in NOW.items()}


def noisy(by: float) -> State:
    """Noise in units of an honest client's work, tensor by tensor."""
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
    """The same function in other weights."""
    by = torch.tensor([2.0, 0.5]).repeat(8)
    return {
        **state,
        "0.weight": by[:, None] * state["0.weight"],
        "0.bias": by * state["0.bias"],
        "3.weight": state["3.weight"] / by,
    }


IDLERS = {
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


@pytest.mark.parametrize("name", IDLERS)
def test_what_a_client_has_in_hand_without_training_is_no_work(name: str) -> None:
    found = moved(*HONEST, IDLERS[name])
    assert found[-1] < 0.05
    assert min(found[:-1]) > 2 * IDLE


@pytest.mark.parametrize("by", [0.1, 1.0, 3.0, 100.0])
def test_noise_of_any_size_is_less_than_work(by: float) -> None:
    """In so small a network noise moves more than in a real one; but no more if there is more of it."""
    found = moved(*HONEST, noisy(by))
    assert found[-1] < 0.75 * min(found[:-1])
    assert found[-1] <= moved(*HONEST, noisy(1.0))[-1] * 1.05


def test_little_work_is_work() -> None:
    assert min(moved(*HONEST, trained(NOW, 200, steps=2))) > 2 * IDLE


def by_hand(start: State, sent: State) -> float:
    """m of one client."""
    found = []
    for one in (start, sent):
        module = network().eval()
        module.load_state_dict(one)
        noise = module(common_noise(7, 1, (FEATURES,))[0]).detach().double()
        spread = math.sqrt(float((noise.std(0) ** 2).mean()))
        logits = (module(INPUTS).detach().double() - noise.mean(0)) / spread
        found.append(logits - logits.mean(1, keepdim=True))
    return math.sqrt(float(((found[1] - found[0]) ** 2).mean()))


def own_by_hand(start: State, sent: State, past: Sequence[State], usual: dict[str, float]) -> State:
    """v + ρ δ, by least squares with the rows of v and the changes as columns, all at once."""
    own = dict(start)
    for name, most in usual.items():
        v, step = start[name].double(), (sent[name].double() - start[name].double())
        along_rows = [torch.zeros_like(v) for _ in v]
        for column, row in zip(along_rows, range(len(v)), strict=True):
            column[row] = v[row]
        changes = [past[-1][name].double() - model[name].double() for model in past[:-1]]
        columns = torch.stack([each.flatten() for each in (*along_rows, *changes)], dim=1)
        fit = torch.linalg.lstsq(columns, step.flatten()[:, None], driver="gelsd").solution
        left = (step.flatten() - (columns @ fit).flatten()).view_as(v)
        own[name] = (v + min(10, most / left.norm().item()) * left).float()
    return own


def test_equals_a_computation_by_least_squares() -> None:
    names = ("0.weight", "3.weight")
    steps = {
        name: [
            own_step(NOW[name], model[name], [NOW[name].double() - each[name].double() for each in PAST[:-1]])
            for model in HONEST
        ]
        for name in names
    }
    usual = {name: median(torch.stack([step.norm() for step in steps[name]])) for name in names}
    own = [by_hand(NOW, own_by_hand(NOW, model, PAST, usual)) for model in HONEST]
    whole = [by_hand(NOW, model) for model in HONEST]
    middle = [sum(sorted(values)[1:3]) / 2 for values in (own, whole)]
    expected = [min(n / middle[0], 10 * m / middle[1]) for n, m in zip(own, whole, strict=True)]
    assert moved(*HONEST) == pytest.approx(expected, rel=1e-3)


def test_more_clients_than_fit_at_once_give_the_same() -> None:
    assert moved(*HONEST, NOW, at_once=2) == pytest.approx(moved(*HONEST, NOW), abs=1e-5)


def test_in_the_first_round_there_is_nothing_to_repeat() -> None:
    sent = [trained(PAST[0], seed) for seed in range(3)]
    found = moved(*sent, PAST[0], past=PAST[:1], start=PAST[0])
    assert found == pytest.approx(moved(*sent, PAST[0], past=[], start=PAST[0]))
    assert found[-1] == 0
    assert min(found[:-1]) > 2 * IDLE


def test_statistics_and_flags_of_a_model_have_no_part_in_it() -> None:
    class Flagged(nn.Sequential):
        def __init__(self) -> None:
            super().__init__(nn.Linear(FEATURES, CLASSES), nn.BatchNorm1d(CLASSES))
            self.register_buffer("mask", torch.tensor([True, False]))

    module = Flagged()
    one = {name: tensor.clone() for name, tensor in module.state_dict().items()}
    counted = {**one, "1.num_batches_tracked": torch.tensor(7), "1.running_var": 5 * one["1.running_var"]}
    works = {**counted, "0.weight": one["0.weight"] + torch.eye(CLASSES, FEATURES)}
    past = [{**one, "0.weight": one["0.weight"] - 1, "1.running_var": 9 * one["1.running_var"]}, one]
    found = movement(Stack(module, [one] * 3), Stack(module, [works, works, counted]), INPUTS, 7, past)
    assert found[0] > 0.5
    assert found[2] == 0


def test_rows_that_a_normalisation_takes_back_are_no_work() -> None:
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
    found = movement(Stack(module, [one] * 4), Stack(module, [*works, same]), INPUTS, 7)
    assert found[-1] < 0.01
    assert min(found[:-1]) > 2 * IDLE


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
    found = [
        movement(Stack(module, states[:1] * 3), Stack(module, states[1:]), inputs, 7)
        for module in (Tied(), Apart())
    ]
    torch.testing.assert_close(*found, rtol=1e-4, atol=1e-4)


def test_one_absurd_upload_does_not_hide_an_idle_client() -> None:
    absurd = {name: torch.full_like(tensor, 3e38) for name, tensor in NOW.items()}
    found = moved(*HONEST, NOW, absurd)
    assert idle(torch.tensor(found)).tolist()[:5] == [False] * 4 + [True]


@given(st.lists(st.floats(0, 1e6), min_size=1, max_size=9))
def test_of_those_who_moved_at_least_the_upper_half_works(lengths: list[float]) -> None:
    found = idle(relative(torch.tensor(lengths, dtype=torch.float64)))
    moved = [idle for idle, length in zip(found.tolist(), lengths, strict=True) if length]
    assert sum(moved) <= len(moved) // 2


def test_three_of_five_who_return_what_they_were_sent_do_not_pass_for_usual() -> None:
    found = moved(*HONEST[:2], NOW, NOW, NOW)
    assert idle(torch.tensor(found)).tolist() == [False, False, True, True, True]


def test_changes_that_follow_from_others_take_nothing_more() -> None:
    torch.manual_seed(0)
    one, two, first, second = torch.randn(4, 3, 2, dtype=torch.float64)
    once = own_step(one, two, [first, second])
    for changes in ([first, first, second], [first, 2 * first, first - second, second]):
        torch.testing.assert_close(own_step(one, two, changes), once)


@given(st.lists(st.floats(1e-3, 1e3), min_size=1, max_size=9), st.floats(0.01, 100))
def test_movement_has_no_unit(lengths: list[float], unit: float) -> None:
    one = torch.tensor(lengths, dtype=torch.float64)
    torch.testing.assert_close(relative(one), relative(unit * one), equal_nan=True)


def test_of_two_clients_one_may_be_idle() -> None:
    assert idle(relative(torch.tensor([0.0, 1.0]))).tolist() == [True, False]
    assert idle(relative(torch.tensor([0.3, 1.0]))).tolist() == [False, False]


def test_nobody_is_idle_where_all_stand_still_and_the_unreadable_are() -> None:
    assert idle(relative(torch.zeros(3))).tolist() == [False] * 3
    assert relative(torch.zeros(3)).isnan().all()
    assert idle(relative(torch.tensor([1.0, math.nan, 2.0]))).tolist() == [False, True, False]
    assert idle(relative(torch.tensor([math.nan, math.inf]))).tolist() == [False, False]


class Reading(Sequence[State]):
    """Models that are read when asked for; knows how many there were at once."""

    class Read(dict[str, Tensor]):
        __hash__ = object.__hash__  # type: ignore[assignment]

    def __init__(self, states: Sequence[State]) -> None:
        self.states = states
        self.alive: weakref.WeakSet[Reading.Read] = weakref.WeakSet()
        self.most = 0

    def __len__(self) -> int:
        return len(self.states)

    def read(self, state: State) -> State:
        found = Reading.Read(state)
        self.alive.add(found)
        self.most = max(self.most, len(self.alive))
        return found

    def __getitem__(self, which: Any) -> Any:
        chosen = self.states[which]
        return list(map(self.read, chosen)) if isinstance(which, slice) else self.read(chosen)


def test_models_that_are_read_when_asked_for_are_few_at_once() -> None:
    sent = [*HONEST, *(trained(NOW, 200 + client) for client in range(4))]
    reading, module = Reading(sent), network()
    found = movement(Stack(module, [NOW] * 8), Stack(module, reading), INPUTS, 7, PAST, at_once=2)
    assert found.tolist() == moved(*sent, at_once=2)
    assert reading.most <= 3
