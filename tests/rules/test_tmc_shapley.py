"""Sampled Shapley values against the exact ones, within the error they state."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from celm.rules.coalitions import CoalitionState, Game
from celm.rules.shapley import shapley_values
from celm.rules.tmc_shapley import Z_90, TmcShapley
from support.games import (
    A_FEW_GAMES,
    additive,
    airport,
    airport_shares,
    draw,
    facts,
    glove,
    round_of,
    table_game,
)


@A_FEW_GAMES
def test_values_are_within_four_standard_errors_of_exact_values(game: Game) -> None:
    result = TmcShapley(permutations=2000, tolerance=0, precision=0).estimate(game, draw())
    exact = np.array(shapley_values(game))
    assert result.values is not None
    assert np.all(np.abs(np.array(result.values) - exact) <= 4 * np.array(result.errors) + 1e-12)
    assert max(result.errors or []) < 0.02


def test_precision_is_the_error_of_nine_estimates_in_ten() -> None:
    """Each of 100 estimates of a client stops at ± .05; about 90 of them should be that close."""
    game, rule = airport([0.1, 0.4, 1.0]), TmcShapley(permutations=10**6, tolerance=0, precision=0.05)
    exact = airport_shares([0.1, 0.4, 1.0])
    estimates = [rule.estimate(game, draw(seed)) for seed in range(100)]
    assert all(Z_90 * max(result.errors or [1.0]) <= 0.05 for result in estimates)
    close = np.array([np.abs(np.array(result.values) - exact) <= 0.05 for result in estimates])
    assert (close.mean(axis=0) >= 0.83).all()


def test_truncation_costs_a_client_of_a_monotone_game_at_most_the_tolerance() -> None:
    costs, rule = [0.1, 0.95, 1.0], TmcShapley(permutations=3000, tolerance=0.1, precision=0)
    result = rule.estimate(airport(costs), draw())
    assert result.values is not None
    assert result.errors is not None
    for value, exact, error in zip(result.values, airport_shares(costs), result.errors, strict=True):
        assert exact - 0.1 - 4 * error <= value <= exact + 4 * error


@settings(max_examples=50)
@given(st.lists(st.floats(-1, 1), min_size=16, max_size=16), st.floats(0, 0.5))
def test_the_sum_is_the_gain_within_the_tolerance(table: list[float], tolerance: float) -> None:
    result = TmcShapley(permutations=20, tolerance=tolerance).estimate(table_game(table), draw())
    assert abs(sum(result.values or []) - (table[-1] - table[0])) <= tolerance + 1e-12


def test_a_game_without_chance_is_exact_and_ends_at_the_first_check() -> None:
    result = TmcShapley().estimate(additive([0.5, -0.25, 0.125]), draw())
    assert result.values == pytest.approx([0.5, -0.25, 0.125])
    assert result.errors == pytest.approx([0, 0, 0])
    assert result.diagnostics["permutations"] == 16


def test_standard_errors_are_those_of_a_mean() -> None:
    """Of two clients, each alone and both together have utility 1: the first adds 1, the other 0."""
    result = TmcShapley(permutations=50, tolerance=0, precision=0).estimate(table_game([0, 1, 1, 1]), draw())
    assert result.values is not None
    p = result.values[0]
    assert result.errors == pytest.approx([(p * (1 - p) / 49) ** 0.5] * 2)
    assert result.diagnostics["permutations"] == 50


def test_at_most_the_set_permutations_are_sampled_and_every_coalition_once() -> None:
    game = glove(4, 4)
    result = TmcShapley(permutations=21, tolerance=0, precision=0).estimate(game, draw())
    assert result.diagnostics["permutations"] == 21
    assert game.evaluations <= 2 + 21 * 7


def test_a_round_records_its_standard_errors() -> None:
    round = round_of({"a": (400, 100), "b": (800, 900), "c": (100, 300)})
    weighting = TmcShapley().compute_weights(CoalitionState(), facts(), round)
    assert set(weighting.diagnostics["standard_errors"]) == {"a", "b", "c"}
    assert weighting.diagnostics["evaluations"] <= 8
