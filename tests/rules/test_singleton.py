"""Singleton values against games whose values are known."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from celm.rules.coalitions import CoalitionState, Game
from celm.rules.singleton import Singleton, singleton_values
from support.games import additive, airport, by_all_orders, facts, glove, round_of, table_game, unanimity


@pytest.mark.parametrize(
    ("game", "values"),
    [
        (additive([0.5, -2.0, 0.25]), [0.5, -2.0, 0.25]),
        (unanimity(4, frozenset({1, 3})), [0] * 4),
        (airport([1.0, 4.0, 4.0]), [1, 4, 4]),
        (glove(2, 1), [0] * 3),
    ],
    ids=["additive", "unanimity", "twins", "glove"],
)
def test_known_games(game: Game, values: Sequence[float]) -> None:
    assert singleton_values(game) == pytest.approx(values)


@given(st.lists(st.floats(-1, 1), min_size=8, max_size=8))
def test_they_are_the_shapley_values_of_the_additive_game_with_the_same_singletons(
    table: list[float],
) -> None:
    sums = [table[0] + sum(table[1 << i] - table[0] for i in range(3) if c >> i & 1) for c in range(8)]
    assert singleton_values(table_game(table)) == pytest.approx(by_all_orders(table_game(sums)), abs=1e-12)


def test_a_round_by_hand() -> None:
    # The start model gets 100 + 100 of 2,000 samples right.
    round = round_of({"a": (300, 100), "b": (100, 0), "c": (500, 300)})
    result = Singleton().compute_weights(CoalitionState(), facts(), round)
    assert result.diagnostics["values"] == pytest.approx({"a": 0.1, "b": -0.05, "c": 0.3})
    assert result.aggregation_weights == pytest.approx({"a": 0.25, "b": 0, "c": 0.75})
    assert result.diagnostics["evaluations"] == 3 + 2
