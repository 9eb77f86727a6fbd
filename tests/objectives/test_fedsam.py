"""SAM and ASAM against their formulas on softmax regression."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from celm.objectives.cross_entropy import Plain
from celm.objectives.fedsam import FedSam
from support.local_training import joined, linear, net, samples, slope, step, task_of, together


@pytest.mark.parametrize(("rho", "used"), [(None, 0.1), (0.6, 0.6)])
def test_sam_by_hand(rho: float | None, used: float) -> None:
    layer, (x, y) = linear(), samples()
    W = joined(layer).copy()
    g = slope(W, x, y)
    result = together(FedSam(rho=rho).gradients(task_of(layer, y), None, x, y))
    np.testing.assert_allclose(result, slope(W + used * g / np.linalg.norm(g), x, y), atol=1e-12)
    assert np.array_equal(joined(layer), W)


@pytest.mark.parametrize(("rho", "used"), [(None, 0.7), (0.2, 0.2)])
def test_asam_by_hand(rho: float | None, used: float) -> None:
    layer, (x, y) = linear(), samples()
    W = joined(layer).copy()
    g = slope(W, x, y)
    T = np.abs(W) + 0.2
    T[:, -1] = 1  # biases
    moved = W + used * T**2 * g / np.linalg.norm(T * g)
    result = together(FedSam(rho=rho, adaptive=True).gradients(task_of(layer, y), None, x, y))
    np.testing.assert_allclose(result, slope(moved, x, y), atol=1e-12)


@pytest.mark.parametrize("adaptive", [False, True])
def test_rho_zero_is_plain_training_to_the_bit(adaptive: bool) -> None:
    x, y = samples()
    first = net().float()
    second = copy.deepcopy(first)
    for module, objective in ((first, FedSam(rho=0, adaptive=adaptive)), (second, Plain())):
        task = task_of(module, y)
        for _ in range(4):
            step(objective, task, None, x.float(), y)
    assert all(torch.equal(a, b) for a, b in zip(first.parameters(), second.parameters(), strict=True))


def test_batch_statistics_are_of_the_first_pass() -> None:
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(4, 5), nn.BatchNorm1d(5), nn.Linear(5, 3))
    once = copy.deepcopy(module).train()
    x, y = samples()
    once(x.float())
    FedSam(rho=2.0).gradients(task_of(module, y), None, x.float(), y)
    for (name, result), expected in zip(module.named_buffers(), once.buffers(), strict=True):
        assert torch.equal(result, expected), name


@pytest.mark.parametrize("adaptive", [False, True])
def test_a_zero_gradient_gives_no_perturbation(adaptive: bool) -> None:
    layer = nn.Linear(4, 1)
    x, y = samples(3)[0].float(), torch.zeros(3, dtype=torch.long)
    task = task_of(layer, y, classes=1)
    assert not any(g.any() for g in FedSam(adaptive=adaptive).gradients(task, None, x, y))


def test_parameters_come_back_even_when_the_second_pass_fails() -> None:
    layer, (x, y) = linear(), samples()
    task = task_of(layer, y)
    before = joined(layer).copy()
    calls = []

    def fail(*_: object) -> None:
        calls.append(1)
        if len(calls) == 2:
            raise RuntimeError("second pass")

    layer.register_forward_pre_hook(fail)
    with pytest.raises(RuntimeError, match="second pass"):
        FedSam().gradients(task, None, x, y)
    assert np.array_equal(joined(layer), before)


@settings(deadline=None, max_examples=20)
@given(rho=st.floats(0.01, 2), seed=st.integers(0, 99))
def test_the_ascent_is_as_long_as_rho_and_uphill(rho: float, seed: int) -> None:
    layer, (x, y) = linear(seed), samples(5, seed)
    task = task_of(layer, y)
    ascent = FedSam(rho=rho).compute_perturbation(task, Plain().gradients(task, None, x, y))
    assert np.linalg.norm(together(ascent)) == pytest.approx(rho)
    assert (together(ascent) * slope(joined(layer), x, y)).sum() > 0
