"""FedProx against its gradient on paper."""

from __future__ import annotations

import copy

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from celm.objectives.cross_entropy import Plain
from celm.objectives.fedprox import FedProx
from support.local_training import joined, linear, net, samples, slope, step, task_of, together


def test_gradient_is_that_of_cross_entropy_plus_mu_times_the_displacement() -> None:
    layer, (x, y) = linear(), samples()
    start = joined(layer).copy()
    objective, task = FedProx(mu=0.7), task_of(layer, y)
    context = objective.start_round(task)
    for _ in range(3):
        now = joined(layer).copy()
        result = together(objective.gradients(task, context, x, y))
        np.testing.assert_allclose(result, slope(now, x, y) + 0.7 * (now - start), atol=1e-12)
        step(objective, task, context, x, y)


def test_mu_zero_is_plain_training_to_the_bit() -> None:
    x, y = samples()
    first = net().float()
    second = copy.deepcopy(first)
    for module, objective in ((first, FedProx(mu=0)), (second, Plain())):
        task = task_of(module, y)
        context = objective.start_round(task)
        for _ in range(5):
            step(objective, task, context, x.float(), y)
    assert all(torch.equal(a, b) for a, b in zip(first.parameters(), second.parameters(), strict=True))


def test_the_pull_is_towards_the_model_received_in_this_round() -> None:
    layer, (x, y) = linear(), samples()
    objective = FedProx(mu=5)
    task = task_of(layer, y)
    step(objective, task, objective.start_round(task), x, y)
    again = objective.start_round(task)
    result = together(objective.gradients(task, again, x, y))
    np.testing.assert_allclose(result, slope(joined(layer), x, y), atol=1e-12)


@settings(deadline=None, max_examples=30)
@given(weak=st.floats(0, 2), more=st.floats(0.1, 3))
def test_a_stronger_pull_ends_closer(weak: float, more: float) -> None:
    ways = []
    for mu in (weak, weak + more):
        layer, (x, y) = linear(), samples()
        start = joined(layer).copy()
        objective, task = FedProx(mu=mu), task_of(layer, y)
        context = objective.start_round(task)
        for _ in range(4):
            step(objective, task, context, x, y)
        ways.append(np.linalg.norm(joined(layer) - start))
    assert ways[1] < ways[0]
