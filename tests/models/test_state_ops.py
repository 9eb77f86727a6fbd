"""State dicts as vectors, against numbers on paper and numpy in float64."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from celm.models.state_ops import add_scaled, cosine, difference, flatten, l2_norm

REFERENCE = {
    "weight": torch.tensor([[1.0, 2.0], [3.0, 4.0]]),
    "steps": torch.tensor(7),
    "bias": torch.tensor([0.5, -0.5], dtype=torch.float64),
    "mask": torch.tensor([True, False]),
}
STATE = {
    "mask": torch.tensor([False, False]),
    "bias": torch.tensor([3.5, -0.5], dtype=torch.float64),
    "weight": torch.tensor([[1.0, 2.0], [3.0, 0.0]]),
    "steps": torch.tensor(9),
}


def test_a_difference_has_the_floating_tensors_in_the_order_of_the_reference() -> None:
    delta = difference(STATE, REFERENCE)
    assert list(delta) == ["weight", "bias"]
    assert delta["weight"].tolist() == [[0, 0], [0, -4]]
    assert delta["bias"].tolist() == [3, 0]
    assert flatten(delta).tolist() == [0, 0, 0, -4, 3, 0]
    assert l2_norm(delta) == 5


def test_a_scaled_sum_changes_only_the_tensors_of_the_delta() -> None:
    moved = add_scaled(REFERENCE, {"weight": torch.ones(2, 2)}, -0.5)
    assert list(moved) == list(REFERENCE)
    assert moved["weight"].tolist() == [[0.5, 1.5], [2.5, 3.5]]
    assert all(moved[name] is REFERENCE[name] for name in ("steps", "bias", "mask"))
    assert REFERENCE["weight"].tolist() == [[1, 2], [3, 4]]


def test_adding_the_difference_gives_the_state_again() -> None:
    again = add_scaled(REFERENCE, difference(STATE, REFERENCE))
    assert all(torch.equal(again[name], STATE[name]) for name in ("weight", "bias"))
    assert torch.equal(again["steps"], REFERENCE["steps"])


def test_a_norm_is_computed_in_float64() -> None:
    """In float32 the square of 1e30 is infinite, and 1e8 + 1 is 1e8."""
    assert l2_norm({"a": torch.tensor([3e30, 4e30])}) == pytest.approx(5e30)
    assert l2_norm({"a": torch.tensor([1e4]), "b": torch.tensor([1.0])}) == math.sqrt(1e8 + 1)
    assert l2_norm({}) == 0


VECTORS = st.lists(st.floats(-1e3, 1e3, width=32), min_size=3, max_size=3)


@given(VECTORS, VECTORS)
def test_a_cosine_is_numpys(one: list[float], other: list[float]) -> None:
    a, b = np.array(one), np.array(other)
    lengths = float(np.linalg.norm(a) * np.linalg.norm(b))
    expected = float(a @ b) / lengths if lengths > 0 else 0.0
    assert cosine(torch.tensor(one), torch.tensor(other)) == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize("other", [torch.zeros(2), torch.tensor([math.inf, 0]), torch.tensor([math.nan, 0])])
def test_a_cosine_that_is_not_defined_is_zero(other: Tensor) -> None:
    assert cosine(torch.tensor([1.0, 2.0]), other) == 0
