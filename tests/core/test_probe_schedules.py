"""Probe schedules against hand-made probes, and class samples against all samples of a small case."""

from __future__ import annotations

import itertools
import math
from copy import deepcopy

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from sklearn.datasets import load_digits
from torch import Tensor, nn

from celm.core.evidence import evidence, scores, shares
from celm.core.probe import ProbeResult, probe
from celm.core.probe_schedules import (
    INITIAL_STEPS,
    FixedSteps,
    StepDoubling,
    class_sampling_errors,
    sample_classes,
)


def coarse_probe(steps: int, lr: float) -> ProbeResult:
    """Return scores (0.5 + lr, 0.5 - lr), whose error is the step size; the inputs say the number of steps."""
    return ProbeResult(torch.tensor([[0.5 + lr, 0.5 - lr]]), torch.tensor(steps))


def first_row(result: ProbeResult) -> Tensor:
    return result.logits[0]


def test_steps_are_doubled_until_the_scores_converge() -> None:
    # Step sizes are 2/10, 2/20, 2/40: the scores change by 0.1, then 0.05, which times log2(200 / 40) is 0.116.
    result, bound = StepDoubling(200, 0.01, 0.15).run(coarse_probe, first_row)
    assert int(result.inputs) == 4 * INITIAL_STEPS
    assert bound == pytest.approx(0.05 * math.log2(5))
    assert abs(float(result.logits[0, 0]) - 0.51) <= bound


def test_without_convergence_all_steps_are_taken() -> None:
    calls: list[tuple[int, float]] = []

    def run_probe(steps: int, lr: float) -> ProbeResult:
        calls.append((steps, lr))
        return coarse_probe(steps, lr)

    result, bound = StepDoubling(200, 0.01, 1e-9).run(run_probe, first_row)
    assert (int(result.inputs), bound) == (200, 0.0)
    assert [steps for steps, _ in calls] == [10, 20, 40, 80, 160, 200]
    assert [steps * lr for steps, lr in calls] == pytest.approx([2.0] * 6)


def test_fixed_steps_run_one_probe_without_a_bound() -> None:
    result, bound = FixedSteps(200, 0.01).run(coarse_probe, first_row)
    assert (int(result.inputs), bound) == (200, None)
    assert result.logits[0].tolist() == pytest.approx([0.51, 0.49])


@pytest.mark.parametrize("steps", [0, 1, INITIAL_STEPS])
def test_a_probe_of_few_steps_is_run_once(steps: int) -> None:
    result, bound = StepDoubling(steps, 0.3, 0.5).run(coarse_probe, first_row)
    assert (int(result.inputs), bound) == (steps, 0.0)


def test_on_trained_models_the_result_is_within_the_tolerance() -> None:
    """Train five clients on some digits each, for a few steps from a common start."""
    images, labels = load_digits(return_X_y=True)
    x, y = torch.from_numpy(images).float() / 16, torch.from_numpy(labels)
    start = nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))
    draw = torch.Generator().manual_seed(2)
    for parameter in start.parameters():
        parameter.data = torch.randn(parameter.shape, generator=draw) / 8
    models = [start]
    for client_classes in ((0, 1), (2, 3, 4), (5,), (6, 7, 8, 9), (1, 4, 9)):
        client = deepcopy(start)
        rows = torch.isin(y, torch.tensor(client_classes))
        optimizer = torch.optim.SGD(client.parameters(), lr=0.5)
        for _ in range(40):
            optimizer.zero_grad()
            nn.functional.cross_entropy(client(x[rows]), y[rows]).backward()
            optimizer.step()
        models.append(client)

    def run_probe(steps: int, lr: float) -> ProbeResult:
        return probe(models, (64,), 10, steps=steps, lr=lr, seed=1)

    def scores_of(result: ProbeResult) -> Tensor:
        return scores(evidence(result.logits[1:], result.logits[0]))

    exact = scores_of(run_probe(200, 0.01))
    for tolerance in (0.02, 0.01, 0.005):
        result, bound = StepDoubling(200, 0.01, tolerance).run(run_probe, scores_of)
        assert 0 < bound <= tolerance
        assert float((scores_of(result) - exact).abs().max()) <= tolerance


@given(st.integers(1, 60), st.integers(2, 60), st.integers(0, 9), st.integers(1, 50))
def test_every_class_is_sampled_before_any_is_sampled_twice(
    classes: int, count: int, seed: int, first: int
) -> None:
    rounds = [sample_classes(classes, count, seed, first + t) for t in range(classes // count)]
    sampled = list(itertools.chain(*rounds))
    assert len(sampled) == len(set(sampled))
    for columns in rounds:
        assert columns == sorted(columns)
        assert len(columns) == min(count, classes)
        assert all(0 <= column < classes for column in columns)
    assert sample_classes(classes, classes, seed, first) == list(range(classes))


def test_the_estimate_is_unbiased_and_its_standard_error_exact() -> None:
    """Enumerate all C(8, 3) samples: their mean is the mean over all classes, their variance that of the formula."""
    Q = torch.from_numpy(np.random.default_rng(0).gamma(0.5, size=(4, 8)))
    whole = shares(Q).mean(1)
    samples = [list(chosen) for chosen in itertools.combinations(range(8), 3)]
    means = torch.stack([shares(Q[:, columns]).mean(1) for columns in samples])
    squares = torch.stack([class_sampling_errors(Q[:, columns], 8).square() for columns in samples])
    torch.testing.assert_close(means.mean(0), whole)
    torch.testing.assert_close(squares.mean(0), means.var(0, unbiased=False), rtol=1e-9, atol=0)


def test_the_standard_error_of_all_classes_is_0_and_of_one_class_infinite() -> None:
    Q = torch.rand(3, 5)
    assert class_sampling_errors(Q, 5).tolist() == [0.0] * 3
    assert class_sampling_errors(Q[:, :1], 5).tolist() == [math.inf] * 3
