"""FedSOL, adaptive and fixed, against its formulas on softmax regression."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from celm.objectives.cross_entropy import Plain
from celm.objectives.fedsol import FedSol
from support.local_training import (
    Array,
    joined,
    linear,
    net,
    samples,
    slope,
    softmax,
    step,
    task_of,
    together,
)


def proximal_slope(W: Array, start: Array, x: Tensor, temperature: float) -> Array:
    rows = np.hstack([x.numpy(), np.ones((len(x), 1))])
    p, wanted = (softmax(rows @ V.T / temperature) for V in (W, start))
    return (p - wanted).T @ rows / temperature / len(x)


@pytest.mark.parametrize("adaptive", [True, False])
def test_by_hand_over_three_steps(adaptive: bool) -> None:
    layer, (x, y) = linear(), samples()
    start = joined(layer).copy()
    objective, task = FedSol(rho=1.5, adaptive=adaptive, temperature=2.0), task_of(layer, y, lr=0.5)
    context = objective.start_round(task)
    for number in range(3):
        W = joined(layer).copy()
        g_p = proximal_slope(W, start, x, 2.0)
        e = 1.5 * g_p / (np.linalg.norm(g_p) + 1e-12)
        if adaptive:
            way = np.abs(W - start)
            e[:, :-1] *= way[:, :-1] / np.maximum(np.linalg.norm(way[:, :-1], axis=0), 1e-12)
            e[:, -1] *= way[:, -1] / max(np.linalg.norm(way[:, -1]), 1e-12)
        assert number == 0 or np.linalg.norm(e) > 0.1
        result = together(objective.gradients(task, context, x, y))
        np.testing.assert_allclose(result, slope(W + e, x, y), atol=1e-9)
        assert np.array_equal(joined(layer), W)
        step(objective, task, context, x, y)


def test_the_proximal_gradient_is_that_of_the_divergence() -> None:
    module, (x, y) = net(), samples()
    objective, task = FedSol(), task_of(module, y, lr=1.0)
    context = objective.start_round(task)
    step(Plain(), task, None, x, y)
    result = objective.proximal_gradients(task, context, x)
    wanted = (context.network(x) / 3).softmax(dim=1)
    actual = (module(x) / 3).softmax(dim=1)
    divergence = (wanted * (wanted.log() - actual.log())).sum(dim=1).mean()
    for a, b in zip(result, torch.autograd.grad(divergence, list(module.parameters())), strict=True):
        torch.testing.assert_close(a, b)


@pytest.mark.parametrize("adaptive", [True, False])
def test_the_first_step_of_a_round_is_plain_to_the_bit(adaptive: bool) -> None:
    module, (x, y) = net().float(), samples()
    objective, task = FedSol(adaptive=adaptive), task_of(module, y)
    result = objective.gradients(task, objective.start_round(task), x.float(), y)
    plain = Plain().gradients(task, None, x.float(), y)
    assert all(torch.equal(a, b) for a, b in zip(result, plain, strict=True))


def test_batch_statistics_are_of_the_first_pass_and_the_anchor_keeps_its_own() -> None:
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(4, 5), nn.BatchNorm1d(5), nn.Linear(5, 3))
    once = copy.deepcopy(module).train()
    delivered = copy.deepcopy(module)
    x, y = samples()
    once(x.float())
    objective, task = FedSol(rho=2.0), task_of(module, y)
    context = objective.start_round(task)
    objective.gradients(task, context, x.float(), y)
    for (name, result), expected in zip(module.named_buffers(), once.buffers(), strict=True):
        assert torch.equal(result, expected), name
    for result, expected in zip(context.network.buffers(), delivered.buffers(), strict=True):
        assert torch.equal(result, expected)


def test_parameters_of_any_shape_are_perturbed() -> None:
    class Scaled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv, self.head = nn.Conv1d(1, 2, 2), nn.Linear(6, 3)
            self.scale = nn.Parameter(torch.tensor(2.0))

        def forward(self, inputs: Tensor) -> Tensor:
            out: Tensor = self.scale * self.head(self.conv(inputs[:, None]).flatten(1))
            return out

    x, y = samples()
    objective, task = FedSol(), task_of(Scaled(), y)
    context = objective.start_round(task)
    step(objective, task, context, x.float(), y)
    ascent = objective.compute_perturbation(
        task, context, objective.proximal_gradients(task, context, x.float())
    )
    assert all(part.any() for part in ascent)
    assert [part.shape for part in ascent] == [parameter.shape for parameter in task.parameters]
