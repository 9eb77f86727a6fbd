"""Movement of a model, against a plain computation, and what does not count as movement."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from celm.method.calibration import common_noise
from celm.method.movement import idle, movement
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
    found = []
    for one in (delivered, trained):
        module = network().eval()
        module.load_state_dict(one)
        noise = module(common_noise(seed, 1, SHAPE)[0]).detach().double()
        spread = math.sqrt(float((noise.std(0) ** 2).mean()))
        logits = (module(INPUTS).detach().double() - noise.mean(0)) / spread
        found.append(logits - logits.mean(1, keepdim=True))
    return math.sqrt(float(((found[1] - found[0]) ** 2).mean()))


def moved(delivered: State, *trained: State) -> list[float]:
    module = network().train()
    found = movement(Stack(module, [delivered] * len(trained)), Stack(module, trained), INPUTS, 7)
    assert module.training
    return found.tolist()


def test_equals_a_computation_model_by_model() -> None:
    start, one, other = state(0), state(1), state(2)
    expected = [by_hand(start, one, 7), by_hand(start, other, 7)]
    assert moved(start, one, other) == pytest.approx(expected, rel=1e-4)


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
    # At least the upper half works.
    assert int(found.sum()) <= len(lengths) // 2


def test_nobody_is_idle_where_all_stand_still_and_the_unreadable_are() -> None:
    assert idle(torch.zeros(3)).tolist() == [False] * 3
    assert idle(torch.tensor([1.0, math.nan, 2.0])).tolist() == [False, True, False]
    assert idle(torch.tensor([math.nan, math.inf])).tolist() == [False, False]
