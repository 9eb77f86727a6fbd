"""How reputations are divided among the present clients, and who is removed, in exact fractions."""

from __future__ import annotations

import pytest

from celm.core.weights import ClientWeights
from celm.rules.reputation import remove_low_reputation, share_reputation

BEFORE = ClientWeights({"a": 0.5, "b": 0.25, "c": 0.25})


def test_the_present_divide_what_they_hold_together_and_the_absent_keep_theirs() -> None:
    after = share_reputation(BEFORE, {"a": 1.0, "c": 3.0}).by_client
    assert after == pytest.approx({"a": 0.75 / 4, "b": 0.25, "c": 0.75 * 3 / 4})


def test_values_that_are_all_zero_are_divided_equally() -> None:
    after = share_reputation(BEFORE, {"a": 0.0, "c": 0.0}).by_client
    assert after == pytest.approx({"a": 0.375, "b": 0.25, "c": 0.375})


def test_a_client_below_a_third_of_the_mean_is_removed_and_the_rest_scaled() -> None:
    low = ClientWeights({"a": 0.1, "b": 0.5, "c": 0.4})
    remaining, removed = remove_low_reputation(low, ["a", "b"], threshold=1 / 3)
    assert removed == ("a",)
    assert remaining.by_client == pytest.approx({"b": 5 / 9, "c": 4 / 9})


def test_a_client_at_the_threshold_or_absent_stays() -> None:
    weights = ClientWeights({"a": 0.25, "b": 0.25, "c": 0.5})
    assert remove_low_reputation(weights, ["a", "b", "c"], threshold=0.75) == (weights, ())
    low = ClientWeights({"a": 0.1, "b": 0.5, "c": 0.4})
    assert remove_low_reputation(low, ["b", "c"], threshold=1 / 3) == (low, ())


def test_the_last_client_is_never_removed() -> None:
    alone = ClientWeights({"a": 1.0})
    assert remove_low_reputation(alone, ["a"], threshold=1.5) == (alone, ())
