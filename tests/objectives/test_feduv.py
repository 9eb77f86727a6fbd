"""FedUV against its formula in numpy, and edge cases."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from celm.models.heads import extract_features
from celm.objectives.cross_entropy import Plain
from celm.objectives.feduv import FedUv, uniformity_loss, variance_loss
from support.local_training import Array, net, numerically, samples, softmax, task_of


def by_formula(logits: Array, z: Array, y: Array, variance: float, uniformity: float) -> float:
    count, classes = logits.shape
    p = softmax(logits)
    gamma = np.eye(classes)[:, 0].std(ddof=1)
    L_V = np.maximum(0, gamma - p.std(axis=0, ddof=1)).mean()
    D = np.array([((z[a] - z[b]) ** 2).sum() for a in range(count) for b in range(a + 1, count)])
    apart = np.sort(D[D > 0])
    L_U = np.exp(-D / apart[(len(apart) - 1) // 2]).mean()
    ce = -np.log(p[np.arange(count), y]).mean()
    return float(ce + variance * L_V + uniformity * L_U)


@pytest.mark.parametrize(("variance", "used"), [(None, 3 / 4), (2.0, 2.0)])
def test_loss_is_the_formula(variance: float | None, used: float) -> None:
    module, (x, y) = net(), samples(7)
    x = torch.cat([x, x[:1]])  # one pair at distance zero, which the median leaves out
    y = torch.cat([y, y[:1]])
    task = task_of(module, y)
    with torch.no_grad():
        logits, z = module(x).numpy(), extract_features(module, task.head, x).numpy()
    expected = by_formula(logits, z, y.numpy(), used, 0.5)
    assert FedUv(variance=variance).loss(task, None, x, y).item() == pytest.approx(expected, rel=1e-10)


def test_gradient_is_that_of_the_loss_median_included() -> None:
    module, (x, y) = net(), samples(5)
    objective, task = FedUv(variance=2.0, uniformity=1.5), task_of(module, y)
    expected = numerically(objective, task, None, x, y)
    for result, slope in zip(objective.gradients(task, None, x, y), expected, strict=True):
        np.testing.assert_allclose(result.numpy(), slope, atol=1e-7)


@pytest.mark.parametrize("classes", [2, 3, 10, 47])
def test_one_row_for_each_class_has_the_target_variance(classes: int) -> None:
    assert np.eye(classes)[:, 0].std(ddof=1) == pytest.approx(1 / math.sqrt(classes))
    sure = 1000 * torch.eye(classes, dtype=torch.float64)
    assert variance_loss(sure).item() == pytest.approx(0, abs=1e-12)
    assert variance_loss(0 * sure).item() == pytest.approx(1 / math.sqrt(classes))


def test_a_batch_of_one_is_cross_entropy_alone() -> None:
    module, (x, y) = net(), samples(1)
    task = task_of(module, y)
    assert FedUv().loss(task, None, x, y) == Plain().loss(task, None, x, y)


def test_equal_features_have_the_largest_uniformity_loss() -> None:
    assert uniformity_loss(torch.ones(4, 3)).item() == 1


class Constant(nn.Module):
    """Every input has the same logits and the same features."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.head = nn.Linear(4, 2), nn.Linear(2, 3)

    def forward(self, inputs: Tensor) -> Tensor:
        out: Tensor = self.head(self.body(0 * inputs))
        return out


def test_gradients_stay_finite_if_nothing_varies() -> None:
    x, y = samples(4)
    task = task_of(Constant(), y)
    assert all(gradient.isfinite().all() for gradient in FedUv().gradients(task, None, x.float(), y))


@settings(deadline=None, max_examples=30)
@given(scale=st.floats(0.01, 100), shift=st.floats(-5, 5))
def test_crowding_does_not_depend_on_the_scale_or_place_of_features(scale: float, shift: float) -> None:
    z, _ = samples(6)
    assert uniformity_loss(scale * z + shift).item() == pytest.approx(uniformity_loss(z).item(), rel=1e-6)
