"""Cheaper probes: when step doubling ends, what a sample of classes estimates, and what the rule makes of both."""

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

from celm.base.errors import CelmError
from celm.method.cheaper import COARSEST, refined, sampled_classes, sampling_errors
from celm.method.evidence import evidence, scores, shares
from celm.method.probe import Probe, probe


def walked(steps: int, lr: float) -> Probe:
    """Its scores are wrong by its step size: (0.5 + lr, 0.5 - lr)."""
    return Probe(torch.tensor([[0.5 + lr, 0.5 - lr]]), torch.tensor(steps))


def first_row(found: Probe) -> Tensor:
    return found.logits[0]


def test_steps_are_doubled_until_the_scores_hold_still() -> None:
    # Step sizes are 2/10, 2/20, 2/40: the scores change by 0.1, then 0.05, which times log2(200 / 40) is 0.116.
    found, left = refined(walked, first_row, 200, 0.01, 0.15)
    assert int(found.inputs) == 4 * COARSEST
    assert left == pytest.approx(0.05 * math.log2(5))
    assert abs(float(found.logits[0, 0]) - 0.51) <= left


def test_where_doubling_does_not_settle_the_probe_itself_is_taken() -> None:
    asked: list[tuple[int, float]] = []

    def walk(steps: int, lr: float) -> Probe:
        asked.append((steps, lr))
        return walked(steps, lr)

    found, left = refined(walk, first_row, 200, 0.01, 1e-9)
    assert (int(found.inputs), left) == (200, 0.0)
    assert [steps for steps, _ in asked] == [10, 20, 40, 80, 160, 200]
    assert [steps * lr for steps, lr in asked] == pytest.approx([2.0] * 6)


@pytest.mark.parametrize("steps", [0, 1, COARSEST])
def test_a_short_probe_is_just_done(steps: int) -> None:
    found, left = refined(walked, first_row, steps, 0.3, 0.5)
    assert (int(found.inputs), left) == (steps, 0.0)


def test_on_trained_models_the_result_is_within_the_tolerance() -> None:
    """Five clients that hold some digits each, after a few steps from a common start."""
    images, labels = load_digits(return_X_y=True)
    x, y = torch.from_numpy(images).float() / 16, torch.from_numpy(labels)
    start = nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))
    draw = torch.Generator().manual_seed(2)
    for parameter in start.parameters():
        parameter.data = torch.randn(parameter.shape, generator=draw) / 8
    models = [start]
    for held in ((0, 1), (2, 3, 4), (5,), (6, 7, 8, 9), (1, 4, 9)):
        client = deepcopy(start)
        mine = torch.isin(y, torch.tensor(held))
        optimizer = torch.optim.SGD(client.parameters(), lr=0.5)
        for _ in range(40):
            optimizer.zero_grad()
            nn.functional.cross_entropy(client(x[mine]), y[mine]).backward()
            optimizer.step()
        models.append(client)

    def walk(steps: int, lr: float) -> Probe:
        return probe(models, (64,), 10, steps=steps, lr=lr, seed=1)

    def scores_of(found: Probe) -> Tensor:
        return scores(evidence(found.logits[1:], found.logits[0]))

    exact = scores_of(walk(200, 0.01))
    for tolerance in (0.02, 0.01, 0.005):
        found, left = refined(walk, scores_of, 200, 0.01, tolerance)
        assert 0 < left <= tolerance
        assert float((scores_of(found) - exact).abs().max()) <= tolerance


@given(st.integers(1, 60), st.integers(2, 60), st.integers(0, 9), st.integers(1, 50))
def test_every_class_is_seen_before_any_is_seen_twice(
    classes: int, wanted: int, seed: int, first: int
) -> None:
    rounds = [sampled_classes(classes, wanted, seed, first + t) for t in range(classes // wanted)]
    seen = list(itertools.chain(*rounds))
    assert len(seen) == len(set(seen))
    for columns in rounds:
        assert columns == sorted(columns)
        assert len(columns) == min(wanted, classes)
        assert all(0 <= column < classes for column in columns)
    assert sampled_classes(classes, None, seed, first) == list(range(classes))


def test_over_all_samples_the_mean_is_the_whole_and_the_errors_are_theirs() -> None:
    """All C(8, 3) samples: their mean is the mean over all classes, their spread is what the formula says."""
    Q = torch.from_numpy(np.random.default_rng(0).gamma(0.5, size=(4, 8)))
    whole = shares(Q).mean(1)
    samples = [list(chosen) for chosen in itertools.combinations(range(8), 3)]
    means = torch.stack([shares(Q[:, columns]).mean(1) for columns in samples])
    squares = torch.stack([sampling_errors(Q[:, columns], 8).square() for columns in samples])
    torch.testing.assert_close(means.mean(0), whole)
    torch.testing.assert_close(squares.mean(0), means.var(0, unbiased=False), rtol=1e-9, atol=0)


def test_errors_at_the_ends() -> None:
    Q = torch.rand(3, 5)
    assert sampling_errors(Q, 5).tolist() == [0.0] * 3
    assert sampling_errors(Q[:, :1], 5).tolist() == [math.inf] * 3


def test_a_calibrated_sample_is_refused() -> None:
    from celm.rules.celm import Celm
    from celm.rules.rule import Facts, ProbeSettings

    federation = Facts(("a",), 9, (3,), 10, 0, nn.Linear(3, 9), (), ProbeSettings(classes=4))
    Celm().init(federation)
    with pytest.raises(CelmError, match="calibrated evidence compares all classes"):
        Celm(evidence="calibrated").init(federation)
