"""MOON against its formula in numpy, with and without a projection."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from celm.core.batched_layers import layerwise_forward
from celm.core.model_stack import ModelStack
from celm.models.heads import extract_features, find_head
from celm.models.state_dict import get_state
from celm.objectives.cross_entropy import Plain
from celm.objectives.moon import Moon, MoonState, contrastive_loss
from support.local_training import (
    CLASSES,
    Array,
    after_a_file,
    linear,
    net,
    numerically,
    samples,
    softmax,
    step,
    task_of,
)


def cosine(a: Array, b: Array) -> Array:
    return (a * b).sum(axis=1) / np.linalg.norm(a, axis=1) / np.linalg.norm(b, axis=1)


@pytest.mark.parametrize("projection", [0, 6])
def test_loss_is_the_formula(projection: int) -> None:
    objective = Moon(mu=2.0, temperature=0.7, projection=projection)
    current, delivered, previous = (objective.adapt_model(net(seed), "2") for seed in (0, 1, 2))
    x, y = samples()
    task = task_of(delivered, y, memory=MoonState(get_state(previous)))
    context = objective.start_round(task)
    delivered.load_state_dict(current.state_dict())  # as if trained: the reference must not follow
    reference = objective.adapt_model(net(1), "2")
    with torch.no_grad():
        p = softmax(current(x).numpy())
        z, z_g, z_p = (extract_features(m, task.head, x).numpy() for m in (current, reference, previous))
    assert z.shape == (6, projection or 5)
    towards, away = np.exp(cosine(z, z_g) / 0.7), np.exp(cosine(z, z_p) / 0.7)
    expected = -np.log(p[np.arange(6), y.numpy()]).mean() + 2 * -np.log(towards / (towards + away)).mean()
    assert objective.loss(task, context, x, y).item() == pytest.approx(expected, rel=1e-10)


def test_gradient_is_that_of_the_loss_and_references_take_none() -> None:
    objective = Moon(mu=3.0, projection=0)
    x, y = samples()
    task = task_of(net(0), y, memory=MoonState(get_state(net(2))))
    context = objective.start_round(task)
    assert context is not None
    step(objective, task, context, x, y)
    expected = numerically(objective, task, context, x, y)
    for result, slope in zip(objective.gradients(task, context, x, y), expected, strict=True):
        np.testing.assert_allclose(result.numpy(), slope, atol=1e-7)
    for network in (context.global_model, context.previous_model):
        assert not network.training
        assert not any(parameter.requires_grad for parameter in network.parameters())


def test_the_first_round_is_cross_entropy_alone() -> None:
    x, y = samples()
    task = task_of(net(), y)
    assert Moon(projection=0).loss(task, Moon().start_round(task), x, y) == Plain().loss(task, None, x, y)


@settings(deadline=None, max_examples=30)
@given(temperature=st.floats(0.05, 5), seed=st.integers(0, 50))
def test_identical_references_cost_log_two(temperature: float, seed: int) -> None:
    z, (other, _) = samples(4, seed)[0], samples(4, seed + 100)
    assert contrastive_loss(z, other, other, temperature).item() == pytest.approx(math.log(2))
    assert contrastive_loss(z, z, -z, temperature).item() < math.log(2)


def test_features_that_are_all_zero_give_finite_gradients() -> None:
    z = torch.zeros(3, 4, requires_grad=True)
    contrastive_loss(z, torch.ones(3, 4), -torch.ones(3, 4), 0.5).backward()
    assert z.grad is not None
    assert z.grad.isfinite().all()


def test_the_client_state_is_the_trained_model_and_survives_a_file(tmp_path: Path) -> None:
    objective = Moon(projection=0)
    module = nn.Sequential(nn.Linear(4, 5), nn.BatchNorm1d(5), nn.Linear(5, CLASSES))
    x, y = samples()
    task = task_of(module, y)
    step(objective, task, None, x.float(), y)
    memory = after_a_file(objective.next_client_state(task, None, 1), MoonState, tmp_path)
    assert isinstance(memory, MoonState)
    assert list(memory.model) == list(module.state_dict())
    assert all(torch.equal(memory.model[name], tensor) for name, tensor in module.state_dict().items())
    step(objective, task, None, x.float(), y)
    assert not torch.equal(memory.model["0.weight"], module.state_dict()["0.weight"])


@pytest.mark.parametrize(("module", "head"), [(net(), "2"), (linear(), "")], ids=["net", "linear"])
def test_the_projection_precedes_the_head_and_can_be_probed(module: nn.Module, head: str) -> None:
    objective = Moon()
    assert not objective.keeps_architecture
    adapted = objective.adapt_model(module, head)
    assert find_head(adapted, CLASSES).endswith("classifier")
    shapes = [tuple(p.weight.shape) for p in adapted.modules() if isinstance(p, nn.Linear)][-3:]
    width = shapes[0][0]
    assert shapes == [(width, width), (256, width), (CLASSES, 256)]
    adapted = adapted.float()
    stack = ModelStack(adapted, [get_state(adapted)] * 2)
    fast = layerwise_forward(stack, (4,))
    assert fast is not None
    x = samples(5)[0].float()
    torch.testing.assert_close(fast(torch.stack([x, x]))[1], adapted(x))


def test_without_a_projection_the_model_is_unchanged() -> None:
    module, objective = net(), Moon(projection=0)
    assert objective.keeps_architecture
    assert objective.adapt_model(module, "2") is module
