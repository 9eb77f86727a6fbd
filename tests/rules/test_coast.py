"""CoAst by hand on a model of two tensors, and against a direct evaluation of its double sum."""

from __future__ import annotations

import math
from itertools import pairwise

import numpy as np
import pytest
import torch

from celm.rules.coast import Coast
from support.rule_rounds import Federation, facts_of, module_of

START = {"first": torch.zeros(2), "second": torch.zeros(4)}
FACTS = facts_of(module_of(first=2, second=4))


def federation(rule: Coast) -> Federation:
    return Federation(rule, FACTS, START)


def test_three_rounds_by_hand() -> None:
    """With `keep` = 1/2, one entry of the first tensor counts and two of the second."""
    played = federation(Coast(keep=0.5))
    first = played.play({"a": [3, 1, 2, -4, 1, 0], "b": [1, -3, 0, 1, 2, -4]})
    assert first.scores is None
    assert first.aggregation_weights == {"a": 0.5, "b": 0.5}
    # The second round goes as `a` went, in its largest entries.
    second = played.play({"a": [4, 0, 4, -4, 0, 0], "b": [4, 0, 4, -4, 0, 0]})
    assert second.scores is None
    third = played.play({"a": [0] * 6, "b": [0] * 6})
    # Q(Δ_a,1) = + 0 + - 0 0 is Q(G_2); Q(Δ_b,1) = 0 - 0 0 + - has nothing in common with it.
    assert third.diagnostics["values"] == pytest.approx({"a": 1.0, "b": 0.0})
    assert third.aggregation_weights == third.scores == pytest.approx({"a": 1.0, "b": 0.0})
    # The third round's update is 0, so round 4 adds nothing.
    fourth = played.play({"a": [1] * 6, "b": [1] * 6})
    assert fourth.diagnostics["values"] == {"a": 0.0, "b": 0.0}
    assert fourth.client_weights == pytest.approx({"a": 1.0, "b": 0.0})


def quantised(step: np.ndarray, keep: float) -> np.ndarray:
    """Take the largest entries of each of the two tensors, without ties."""
    parts = []
    for part in (step[:2], step[2:]):
        count = math.ceil(keep * len(part))
        largest = np.argsort(-np.abs(part))[:count]
        parts.append(np.where(np.isin(np.arange(len(part)), largest), np.sign(part), 0))
    return np.concatenate(parts)


def cosine(one: np.ndarray, other: np.ndarray) -> float:
    return float(one @ other / (np.linalg.norm(one) * np.linalg.norm(other)))


@pytest.mark.parametrize(("keep", "horizon"), [(0.5, 2), (0.3, 1), (1.0, 99)])
def test_the_double_sum(keep: float, horizon: int) -> None:
    rng, rounds = np.random.default_rng(3), 7
    steps = {name: rng.normal(size=(rounds, 6)) + np.array([0, 1, 0, 0, 2, 0]) for name in "abc"}
    absent = {("c", 2), ("a", 4)}
    played = federation(Coast(keep=keep, horizon=horizon))
    models, totals = [np.zeros(6)], []
    for t in range(rounds):
        present = {name: steps[name][t] for name in "abc" if (name, t) not in absent}
        totals.append(played.play(present).state.values.by_client)
        models.append(torch.cat(list(played.model.values())).double().numpy())
    later = [quantised(after - before, keep) for before, after in pairwise(models)]
    expected = {
        name: sum(
            cosine(quantised(steps[name][t], keep), later[t + k])
            for t in range(rounds)
            for k in range(1, horizon + 1)
            if (name, t) not in absent and t + k <= rounds - 2  # the last global update is known in no round
        )
        for name in "abc"
    }
    assert totals[-1] == pytest.approx(expected, abs=1e-6)


def test_only_the_rounds_of_the_horizon_are_kept() -> None:
    played = federation(Coast(horizon=2))
    for _ in range(6):
        state = played.play({"a": [1, 2, 3, 4, 5, 6]}).state
    assert len(state.signs) == 3
    assert state.signs[0]["a"].dtype == torch.int8


def test_a_client_that_stands_still_or_turns_back_gains_nothing() -> None:
    played = federation(Coast())
    ahead = [1.0, 2, 3, 4, 5, 6]
    for _ in range(4):
        result = played.play(
            {"a": ahead, "back": [-step / 2 for step in ahead], "idle": [0.0] * 6, "b": ahead}
        )
    assert result.client_weights == pytest.approx({"a": 0.5, "b": 0.5, "back": 0, "idle": 0})
