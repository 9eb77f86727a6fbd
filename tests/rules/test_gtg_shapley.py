"""GTG-Shapley against exact values, and each of its stopping rules."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from celm.rules.coalitions import CoalitionState, Game
from celm.rules.gtg_shapley import GtgShapley, guided_permutation, relative_change
from celm.rules.shapley import shapley_values
from support.games import (
    A_FEW_GAMES,
    additive,
    airport,
    airport_shares,
    draw,
    facts,
    game_of,
    glove,
    round_of,
    table_game,
)


@A_FEW_GAMES
def test_many_orders_give_the_exact_values(game: Game) -> None:
    """Utilities are at most 2, so with 2000 orders a standard error is at most 1 / √2000 = .022."""
    rule = GtgShapley(tolerance=0, convergence=0, minimum=2000, permutations=2000)
    result = rule.estimate(game, draw())
    assert result.diagnostics["permutations"] == 2000
    assert result.values == pytest.approx(shapley_values(game), abs=0.07)


def test_by_default_values_are_close_after_few_orders() -> None:
    """Stopped at a relative change of 5 %, the mean error of an airport game is small beside its gain of 1."""
    costs = [0.1, 0.2, 0.5, 0.6, 0.8, 1.0]
    errors = []
    for seed in range(30):
        result = GtgShapley().estimate(airport(costs), draw(seed))
        assert result.values is not None
        assert 30 <= result.diagnostics["permutations"] <= 54  # .8 · 2^6, and the sweep over heads
        errors.append(np.abs(np.array(result.values) - airport_shares(costs)).mean())
    assert np.mean(errors) < 0.05


def test_two_clients_are_exact() -> None:
    result = GtgShapley(tolerance=0).estimate(table_game([0.0, 0.3, 0.5, 0.6]), draw())
    assert result.values == pytest.approx([0.2, 0.4])


@settings(max_examples=50)
@given(st.lists(st.floats(-1, 1), min_size=16, max_size=16), st.floats(0, 0.5))
def test_the_sum_is_the_gain_within_the_tolerance(table: list[float], tolerance: float) -> None:
    rule = GtgShapley(tolerance=tolerance, round_tolerance=0)
    result = rule.estimate(table_game(table), draw())
    assert abs(sum(result.values or []) - (table[-1] - table[0])) <= tolerance + 1e-12


def test_every_client_leads_an_order_in_turn() -> None:
    generator = draw()
    orders = [guided_permutation(head, 4, generator) for head in range(4)]
    assert [order[0] for order in orders] == [0, 1, 2, 3]
    assert all(sorted(order) == [0, 1, 2, 3] for order in orders)
    assert guided_permutation(0, 1, generator) == [0]


def test_a_round_that_changes_little_is_not_estimated_and_leaves_values_unchanged() -> None:
    state = CoalitionState({"a": 0.3, "b": 0.1})
    flat = round_of({"a": (100, 102), "b": (102, 100)})
    weighting = GtgShapley(decay=0.5).compute_weights(state, facts(), flat)
    assert weighting.scores is None
    assert weighting.state == state
    assert weighting.aggregation_weights == pytest.approx({"a": 0.75, "b": 0.25})
    assert weighting.diagnostics["evaluations"] == 2
    assert weighting.diagnostics["permutations"] == 0


def test_an_order_ends_close_to_the_grand_coalition() -> None:
    """Any two of six players reach the full utility: no coalition of three to five is evaluated."""
    sizes: set[int] = set()

    def worth(S: frozenset[int]) -> float:
        sizes.add(len(S))
        return min(len(S), 2) / 2

    GtgShapley().estimate(game_of(6, worth), draw())
    assert sizes == {0, 1, 2, 6}


def test_sampling_ends_when_values_settle() -> None:
    steady = GtgShapley().estimate(additive([0.5, 0.25, -0.125, 0.3, 0.2]), draw())
    assert steady.diagnostics == {"permutations": 30, "change": pytest.approx(0, abs=1e-9)}
    restless = GtgShapley(convergence=0, tolerance=0).estimate(
        airport([0.1, 0.2, 0.5, 0.6, 0.7, 0.8]), draw()
    )
    assert restless.diagnostics["permutations"] == 54  # .8 · 2^6 = 51.2, and the sweep over heads
    capped = GtgShapley(convergence=0, permutations=10).estimate(glove(3, 3), draw())
    assert capped.diagnostics["permutations"] == 12


def test_change_is_the_largest_mean_relative_difference_from_the_last_mean() -> None:
    added = np.array([[1.0, 4.0], [3.0, 4.0], [2.0, 4.0]])  # running means (1, 4), (2, 4), (2, 4)
    assert relative_change(added) == pytest.approx((0.5 + 0) / 2)
    assert relative_change(np.array([[9.0], [0.0]])) == pytest.approx(1.0)
    assert relative_change(np.zeros((12, 3))) == 0.0
