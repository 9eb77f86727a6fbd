"""Class samplers: the classes of each round, and values that are carried over between rounds."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

from celm.rules.celm_parts.class_sampler import AllClasses, RotatingClasses, make_class_sampler


def not_needed() -> Tensor:
    raise AssertionError("earlier values are not needed")


def test_all_classes_are_probed_in_every_round_and_replace_earlier_values() -> None:
    sampler, values = AllClasses(3), torch.rand(3, 2)
    assert [sampler.classes(number) for number in (1, 2)] == [[0, 1, 2]] * 2
    assert torch.equal(sampler.fill(values, [0, 1, 2], not_needed), values)
    assert sampler.diagnostics(["a"], [0, 1, 2], torch.rand(1, 3)) == {}


def test_rotating_classes_cover_all_classes_in_turn() -> None:
    sampler = RotatingClasses(6, 2, seed=4)
    first, second, third, fourth = (sampler.classes(number) for number in (1, 2, 3, 4))
    assert sorted([*first, *second, *third]) == list(range(6))
    assert fourth == first


def test_classes_that_were_not_probed_keep_earlier_values() -> None:
    earlier = torch.tensor([1.0, 2.0, 3.0, 4.0], dtype=torch.float64)
    filled = RotatingClasses(4, 2, seed=0).fill(torch.tensor([9.0, 8.0]), [0, 2], lambda: earlier)
    assert filled.tolist() == [9, 2, 8, 4]
    assert filled.dtype == torch.float64
    assert earlier.tolist() == [1, 2, 3, 4]


def test_a_sample_is_reported_with_its_standard_errors() -> None:
    Q = torch.tensor([[1.0, 0.0, 2.0], [3.0, 1.0, 2.0]], dtype=torch.float64)
    diagnostics = RotatingClasses(5, 3, seed=0).diagnostics(["a", "b"], [0, 2, 4], Q)
    shares = np.array([[1 / 4, 0, 1 / 2], [3 / 4, 1, 1 / 2]])
    errors = shares.std(axis=1, ddof=1) * np.sqrt((1 - 3 / 5) / 3)
    assert diagnostics["probed"] == [0, 2, 4]
    assert diagnostics["standard_errors"] == pytest.approx({"a": errors[0], "b": errors[1]})


@pytest.mark.parametrize("count", [None, 5, 9])
def test_a_sample_of_all_classes_is_no_sample(count: int | None) -> None:
    assert make_class_sampler(5, count, seed=1) == AllClasses(5)
    assert make_class_sampler(5, 4, seed=1) == RotatingClasses(5, 4, 1)
