"""Fairness: correlations against scipy, Gini by its definition, gains and hits by hand."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from scipy.stats import pearsonr, spearmanr

from celm.metrics.fairness import bottom_hit, collaboration_gain, gini, pearson, spearman, top_hit

# On a grid, so that scipy and we agree on what is equal.
GRID = st.integers(-40, 40).map(lambda n: n / 16)
WIDE = st.one_of(GRID, st.floats(-1e300, 1e300, allow_subnormal=False))


def named(values: Any) -> dict[str, float]:
    return {f"client-{i}": float(value) for i, value in enumerate(values)}


def pairs(values: st.SearchStrategy[float]) -> st.SearchStrategy[tuple[dict[str, float], dict[str, float]]]:
    columns = st.lists(st.tuples(values, values), min_size=2, max_size=12)
    return columns.map(lambda rows: (named(a for a, _ in rows), named(b for _, b in rows)))


WEIGHTS = st.lists(
    st.one_of(st.floats(0, 1), st.floats(0, 1e300, allow_subnormal=False)), min_size=1, max_size=12
)


@given(pairs(GRID))
def test_correlations_are_scipys(drawn: tuple[dict[str, float], dict[str, float]]) -> None:
    left, right = (list(column.values()) for column in drawn)
    if len(set(left)) == 1 or len(set(right)) == 1:
        assert pearson(*drawn) is None
        assert spearman(*drawn) is None
    else:
        assert pearson(*drawn) == pytest.approx(pearsonr(left, right).statistic, abs=1e-9)
        assert spearman(*drawn) == pytest.approx(spearmanr(left, right).statistic, abs=1e-9)


@given(pairs(WIDE))
def test_correlations_are_symmetric_and_from_minus_1_to_1(
    drawn: tuple[dict[str, float], dict[str, float]],
) -> None:
    left, right = drawn
    for correlation in (pearson, spearman):
        result = correlation(left, right)
        if result is None:
            assert correlation(right, left) is None
            continue
        assert -1 <= result <= 1
        assert correlation(right, left) == pytest.approx(result, abs=1e-9)
        assert correlation(left, left) == pytest.approx(1)
        assert correlation(named(-value for value in left.values()), right) == pytest.approx(
            -result, abs=1e-9
        )


@given(pairs(GRID), st.randoms())
def test_the_order_of_clients_does_not_matter(
    drawn: tuple[dict[str, float], dict[str, float]], random: Any
) -> None:
    left, right = drawn
    names = list(left)
    random.shuffle(names)
    shuffled = {name: left[name] for name in names}
    for metric in (pearson, spearman, top_hit, bottom_hit, collaboration_gain):
        assert metric(shuffled, right) == metric(left, right)
    assert gini(shuffled) == gini(left)


def test_only_common_clients_are_compared() -> None:
    contribution = {"client-0": 0.1, "client-1": 0.3, "client-2": 0.6}
    reference = {"client-1": 0.2, "client-2": 0.9, "client-7": 0.0}
    assert pearson(contribution, reference) == 1.0
    assert bottom_hit(contribution, reference) == 1.0
    result = collaboration_gain(contribution, reference)
    assert result is not None
    assert list(result.by_client) == ["client-1", "client-2"]


@pytest.mark.parametrize("metric", [pearson, spearman])
@pytest.mark.parametrize(
    "constant", [[0.2, 0.2, 0.2], [0.1, 0.1 + 1e-17, 0.1], [1 / 3, 1 - 2 / 3, 1 / 3], [0.0] * 3]
)
def test_a_constant_correlates_with_nothing(metric: Any, constant: list[float]) -> None:
    assert metric(named(constant), named([1, 2, 3])) is None
    assert metric(named([1, 2, 3]), named(constant)) is None


@pytest.mark.parametrize("metric", [pearson, spearman, top_hit, bottom_hit])
def test_correlations_of_fewer_than_two_clients_are_none(metric: Any) -> None:
    assert metric({}, {}) is None
    assert metric({"a": 1.0}, {"b": 1.0}) is None
    assert metric({"a": 1.0}, {"a": 2.0}) is None


def test_values_equal_up_to_rounding_share_their_rank() -> None:
    assert spearman({"a": 0.1 + 0.2, "b": 0.3, "c": 0.4}, {"a": 1, "b": 1, "c": 2}) == pytest.approx(1)


def test_spearman_sees_order_where_pearson_sees_size() -> None:
    contribution, reference = named([1, 2, 3, 100]), named([1, 2, 4, 3])
    assert spearman(contribution, reference) == pytest.approx(0.8)
    assert pearson(contribution, reference) == pytest.approx(52 / math.sqrt(7205 * 5))


@given(WEIGHTS)
def test_gini_is_the_mean_difference_over_twice_the_mean(values: list[float]) -> None:
    result = gini(named(values))
    if not any(values):
        assert result is None
        return
    scaled = np.array(values) / max(values)
    oracle = np.abs(scaled[:, None] - scaled).mean() / (2 * scaled.mean())
    assert result is not None
    assert result == pytest.approx(oracle, abs=1e-12)
    assert 0 <= result <= (len(values) - 1) / len(values) + 1e-12


@given(WEIGHTS, st.sampled_from([2.0**-20, 0.5, 4.0]))
def test_gini_does_not_depend_on_scale(values: list[float], scale: float) -> None:
    assume(any(value > 1e-200 for value in values))
    assert gini(named(scale * value for value in values)) == pytest.approx(gini(named(values)), abs=1e-12)


@pytest.mark.parametrize("clients", [1, 2, 5, 20])
def test_gini_goes_from_equal_weights_to_one_client_with_all(clients: int) -> None:
    assert gini(named([1 / clients] * clients)) == pytest.approx(0, abs=1e-15)
    assert gini(named([1.0] + [0.0] * (clients - 1))) == pytest.approx((clients - 1) / clients)


def test_gini_without_weights_or_of_negative_weights_is_none() -> None:
    assert gini({}) is None
    assert gini(named([0, 0])) is None
    assert gini(named([0.5, -0.1])) is None


def test_gains_by_hand() -> None:
    result = collaboration_gain(named([0.9, 0.7, 0.8]), standalone=named([0.6, 0.8, 0.4]))
    assert result is not None
    assert list(result.by_client.values()) == pytest.approx([0.3, -0.1, 0.4])
    assert result.mean == pytest.approx(0.2)
    assert result.spread == pytest.approx(math.sqrt((0.01 + 0.09 + 0.04) / 3))
    assert collaboration_gain(0.9, {}) is None


def test_one_model_for_all_gains_each_its_own_distance() -> None:
    alone = named([0.6, 0.8, 0.4])
    assert collaboration_gain(0.9, alone) == collaboration_gain(named([0.9] * 3), alone)


def test_hits_by_hand() -> None:
    reference = named([1, 2, 3, 3])
    assert top_hit(named([0, 0, 1, 0]), reference) == 1.0  # one of the two that lead
    assert top_hit(named([0, 1, 1, 0]), reference) == 0.5
    assert top_hit(named([1, 0, 0, 0]), reference) == 0.0
    assert bottom_hit(named([0, 1, 1, 1]), reference) == 1.0
    assert bottom_hit(named([1, 0, 1, 1]), reference) == 0.0
    assert top_hit(named([1, 2, 3, 4]), named([5, 5, 5, 5])) is None


def test_equal_weights_hit_as_often_as_guessing() -> None:
    weights = named([1 / 3, 1 - 2 / 3, 1 / 3])
    assert top_hit(weights, named([1, 2, 3])) == pytest.approx(1 / 3)
    assert bottom_hit(weights, named([1, 2, 2])) == pytest.approx(1 / 3)


@given(pairs(WIDE))
def test_a_hit_is_a_part_and_its_own_reference_hits(drawn: tuple[dict[str, float], dict[str, float]]) -> None:
    left, right = drawn
    for hit in (top_hit, bottom_hit):
        result = hit(left, right)
        assert result is None or 0 <= result <= 1
        assert hit(left, left) in (None, 1.0)


def test_invalid_numbers_are_refused() -> None:
    for metric in (pearson, spearman, top_hit, bottom_hit, collaboration_gain):
        with pytest.raises(ValueError, match="'client-0'"):
            metric(named([math.nan, 1]), named([1, 2]))
