"""Movement of a model, against a plain computation, and what does not count as movement."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from celm.method.calibration import common_noise
from celm.method.movement import IDLE, idle, length, movement
from celm.method.stacking import Stack

SHAPE, CLASSES = (6,), 4
INPUTS = torch.randn(CLASSES, *SHAPE, generator=torch.Generator().manual_seed(5))
State = dict[str, Tensor]


def network() -> nn.Sequential:
    return nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Dropout(0.5), nn.Linear(8, CLASSES))


def state(seed: int) -> State:
    torch.manual_seed(seed)
    return {name: tensor.clone() for name, tensor in network().state_dict().items()}


def by_hand(delivered: State, trained: State, seed: int) -> float:
    """Of models that are no further away than others."""
    found = []
    for one in (delivered, trained):
        module = network().eval()
        module.load_state_dict(one)
        noise = module(common_noise(seed, 1, SHAPE)[0]).detach().double()
        spread = math.sqrt(float((noise.std(0) ** 2).mean()))
        logits = (module(INPUTS).detach().double() - noise.mean(0)) / spread
        found.append(logits - logits.mean(1, keepdim=True))
    return math.sqrt(float(((found[1] - found[0]) ** 2).mean()))


def moved(delivered: State, *trained: State, change: State | None = None) -> list[float]:
    module = network().train()
    found = movement(Stack(module, [delivered] * len(trained)), Stack(module, trained), INPUTS, 7, change)
    assert module.training
    return found.tolist()


def along(start: State, *steps: tuple[float, State]) -> State:
    return {
        name: tensor + sum((by * step[name] for by, step in steps), torch.zeros(()))
        for name, tensor in start.items()
    }


def unit(seed: int) -> State:
    """Every tensor of length 1."""
    return {name: tensor / tensor.norm() for name, tensor in state(seed).items()}


def test_equals_a_computation_model_by_model() -> None:
    start = state(0)
    models = [along(start, (0.3, unit(1))), along(start, (0.3, unit(2)))]
    expected = [by_hand(start, model, 7) for model in models]
    assert moved(start, *models) == pytest.approx(expected, rel=1e-4)


def test_nobody_is_further_away_than_the_one_in_the_middle() -> None:
    start, near, middle, far = state(0), *(along(state(0), (by, unit(2))) for by in (0.1, 0.3, 40.0))
    expected = [by_hand(start, model, 7) for model in (near, middle, middle)]
    assert moved(start, near, middle, far) == pytest.approx(expected, rel=1e-3)


@pytest.mark.parametrize("by", [-2.0, 0.5, 1.0, 30.0])
def test_to_repeat_the_last_change_is_to_stand_still(by: float) -> None:
    start, change = state(0), unit(5)
    work = {name: tensor - (tensor * change[name]).sum() * change[name] for name, tensor in unit(1).items()}
    repeats, works, does_both = (
        along(start, *steps) for steps in ([(by, change)], [(1.0, work)], [(by, change), (1.0, work)])
    )
    found = moved(start, repeats, works, does_both, change=change)
    assert found[0] == pytest.approx(0, abs=1e-4)
    assert found[1] == pytest.approx(found[2], rel=1e-3)
    assert found[1] == pytest.approx(by_hand(start, works, 7), rel=1e-3)


def test_a_global_model_that_did_not_change_takes_nothing_away() -> None:
    start, model = state(0), along(state(0), (1.0, unit(1)))
    still = {name: torch.zeros_like(tensor) for name, tensor in start.items()}
    assert moved(start, model, change=still) == moved(start, model)


def test_statistics_of_a_model_have_no_part_in_it() -> None:
    module = nn.Sequential(nn.Linear(6, CLASSES), nn.BatchNorm1d(CLASSES))
    one = {name: tensor.clone() for name, tensor in module.state_dict().items()}
    counted = {**one, "1.num_batches_tracked": torch.tensor(7), "1.running_var": 5 * one["1.running_var"]}
    works = {**counted, "0.weight": one["0.weight"] + torch.eye(CLASSES, 6)}
    # A step against this would make a variance negative.
    change = {name: 9 * torch.ones_like(tensor) for name, tensor in one.items()}
    found = movement(Stack(module, [one] * 3), Stack(module, [works, works, counted]), INPUTS, 7, change)
    assert found[0] > 0.1
    assert found[2] == 0


def test_more_clients_than_fit_the_cache_give_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    models = [along(state(0), (0.1 * seed, unit(seed))) for seed in range(1, 6)]
    at_once = moved(state(0), *models)
    monkeypatch.setattr("celm.method.movement.within_cache", lambda stack: 2)
    assert moved(state(0), *models) == pytest.approx(at_once, rel=1e-5)


@pytest.mark.parametrize("scale", [0.1, 2.0, 100.0])
def test_to_return_the_model_with_a_scaled_head_is_to_stand_still(scale: float) -> None:
    start = state(0)
    scaled = {name: scale * tensor if name.startswith("3.") else tensor for name, tensor in start.items()}
    shifted = {name: tensor + 9 if name == "3.bias" else tensor for name, tensor in start.items()}
    assert moved(start, start, scaled, shifted) == pytest.approx([0, 0, 0], abs=1e-4)


@given(st.lists(st.floats(0, 1e6), min_size=1, max_size=9), st.floats(0.01, 100))
def test_who_is_idle_does_not_depend_on_the_unit(lengths: list[float], unit: float) -> None:
    found = idle(torch.tensor(lengths, dtype=torch.float64))
    assert found.tolist() == idle(unit * torch.tensor(lengths, dtype=torch.float64)).tolist()
    # At least the upper half works, and one of two may be idle.
    assert int(found.sum()) <= len(lengths) // 2


def test_of_two_clients_one_may_be_idle() -> None:
    assert idle(torch.tensor([0.0, 1.0])).tolist() == [True, False]
    assert idle(torch.tensor([IDLE, 1.0])).tolist() == [False, False]


def test_the_length_of_half_precision_tensors_does_not_overflow() -> None:
    assert float(length(torch.full((100,), 6e4, dtype=torch.float16))) == pytest.approx(6e5, rel=1e-3)


def test_nobody_is_idle_where_all_stand_still_and_the_unreadable_are() -> None:
    assert idle(torch.zeros(3)).tolist() == [False] * 3
    assert idle(torch.tensor([1.0, math.nan, 2.0])).tolist() == [False, True, False]
    assert idle(torch.tensor([math.nan, math.inf])).tolist() == [False, False]
