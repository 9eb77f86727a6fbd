"""The restricted softmax against its gradient on paper."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from celm.objectives.cross_entropy import Plain
from celm.objectives.fedrs import FedRs
from support.local_training import joined, linear, samples, slope, task_of, together

LABELS = torch.tensor([0, 0, 0, 2])


@pytest.mark.parametrize(
    ("soft", "scales"), [(False, [1, 0.4, 1]), (True, [1, 0.4, 0.4 + 0.6 / 3])], ids=["hard", "soft"]
)
def test_logits_are_scaled_bias_included(soft: bool, scales: list[float]) -> None:
    layer, (x, _) = linear(), samples(4)
    objective, task = FedRs(alpha=0.4, soft=soft), task_of(layer, LABELS)
    result = together(objective.gradients(task, objective.start_round(task), x, LABELS))
    np.testing.assert_allclose(result, slope(joined(layer), x, LABELS, np.array(scales)), atol=1e-12)


@pytest.mark.parametrize("soft", [False, True])
def test_alpha_one_is_plain_to_the_bit(soft: bool) -> None:
    layer, (x, _) = linear(), samples(4)
    objective, task = FedRs(alpha=1, soft=soft), task_of(layer, LABELS)
    context = objective.start_round(task)
    restricted = objective.gradients(task, context, x, LABELS)
    plain = Plain().gradients(task, None, x, LABELS)
    assert all(torch.equal(a, b) for a, b in zip(restricted, plain, strict=True))


def test_a_client_with_all_classes_trains_plainly() -> None:
    layer, (x, _) = linear(), samples(3)
    labels = torch.arange(3)
    objective, task = FedRs(alpha=0.1), task_of(layer, labels)
    assert objective.loss(task, objective.start_round(task), x, labels) == Plain().loss(task, None, x, labels)


def test_alpha_zero_leaves_a_missing_class_untouched() -> None:
    layer, (x, _) = linear(), samples(4)
    objective, task = FedRs(alpha=0), task_of(layer, LABELS)
    result = together(objective.gradients(task, objective.start_round(task), x, LABELS))
    assert not result[1].any()
    assert result[[0, 2]].all()


@settings(deadline=None, max_examples=30)
@given(labels=st.lists(st.integers(0, 4), max_size=9), alpha=st.floats(0, 1), soft=st.booleans())
def test_scales_lie_between_alpha_and_one(labels: list[int], alpha: float, soft: bool) -> None:
    known = torch.tensor(labels, dtype=torch.long)
    scales = FedRs(alpha, soft).start_round(task_of(linear(classes=5), known, classes=5)).tolist()
    assert all(alpha - 1e-6 <= scale <= 1 + 1e-6 for scale in scales)
    assert all(scale == pytest.approx(alpha) for c, scale in enumerate(scales) if c not in labels)
    if labels:
        assert max(scales) == pytest.approx(1)
