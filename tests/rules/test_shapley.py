"""Exact Shapley values against closed forms, all orders, and the axioms."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import permutations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from celm.base.errors import CelmError
from celm.rules.coalitions import CoalitionState, Game
from celm.rules.shapley import Shapley, shapley_values
from support.games import (
    additive,
    airport,
    airport_shares,
    by_all_orders,
    facts,
    glove,
    majority,
    members,
    round_of,
    table_game,
    unanimity,
)


def tables(players: int) -> st.SearchStrategy[list[float]]:
    return st.lists(st.floats(-1, 1), min_size=2**players, max_size=2**players)


ANY_TABLE = st.integers(1, 5).flatmap(tables)


@pytest.mark.parametrize(
    ("game", "values"),
    [
        (additive([0.5, -2.0, 0.0, 3.25]), [0.5, -2.0, 0.0, 3.25]),
        (unanimity(5, frozenset({1, 3, 4})), [0, 1 / 3, 0, 1 / 3, 1 / 3]),
        (airport([1.0, 2.5, 4.0, 4.0, 9.0]), airport_shares([1.0, 2.5, 4.0, 4.0, 9.0])),
        (glove(1, 2), [2 / 3, 1 / 6, 1 / 6]),
        (glove(2, 2), [1 / 2] * 4),
        (majority(7), [1 / 7] * 7),
    ],
    ids=["additive", "unanimity", "airport", "glove", "even glove", "majority"],
)
def test_known_games(game: Game, values: Sequence[float]) -> None:
    assert shapley_values(game) == pytest.approx(values, abs=1e-14)


def test_airport_shares_are_correct() -> None:
    costs = [1.0, 2.5, 4.0]
    assert airport_shares(costs) == pytest.approx(by_all_orders(airport(costs)))


@given(ANY_TABLE)
def test_the_formula_is_the_mean_over_all_orders(table: list[float]) -> None:
    assert shapley_values(table_game(table)) == pytest.approx(by_all_orders(table_game(table)), abs=1e-12)


@given(ANY_TABLE)
def test_efficiency(table: list[float]) -> None:
    assert math.fsum(shapley_values(table_game(table))) == pytest.approx(table[-1] - table[0], abs=1e-12)


@given(st.lists(st.floats(-1, 1), min_size=5, max_size=5), st.floats(-1, 1))
def test_symmetry_is_exact(by_size: list[float], bonus: float) -> None:
    """Utility depends on the number of players and on whether the last one is present: all others are alike."""
    values = shapley_values(table_game([by_size[c.bit_count()] + bonus * (c >> 3) for c in range(16)]))
    assert values[0] == values[1] == values[2]


@given(tables(3))
def test_a_null_player_gets_nothing(table: list[float]) -> None:
    assert shapley_values(table_game(table + table))[3] == 0.0


@given(tables(4), tables(4), st.floats(-3, 3))
def test_linearity(one: list[float], other: list[float], factor: float) -> None:
    mixed = shapley_values(table_game([a + factor * b for a, b in zip(one, other, strict=True)]))
    parts = zip(shapley_values(table_game(one)), shapley_values(table_game(other)), strict=True)
    assert mixed == pytest.approx([a + factor * b for a, b in parts], abs=1e-12)


@given(tables(4), st.sampled_from(list(permutations(range(4)))))
def test_permuting_clients_permutes_values_exactly(table: list[float], order: tuple[int, ...]) -> None:
    renamed = [table[sum(1 << order[i] for i in members(coalition))] for coalition in range(16)]
    values = shapley_values(table_game(table))
    assert shapley_values(table_game(renamed)) == [values[i] for i in order]


@pytest.mark.parametrize("players", [1, 2, 5, 10])
def test_every_coalition_is_evaluated_once(players: int) -> None:
    asked: list[int] = []

    def utility(coalitions: Sequence[int]) -> list[float]:
        assert len(coalitions) <= 64
        asked.extend(coalitions)
        return [0.0] * len(coalitions)

    shapley_values(Game(players, utility))
    assert sorted(asked) == list(range(2**players))


def test_a_round_takes_two_to_the_n_evaluations() -> None:
    round = round_of({f"client-{i}": (100 * i, 50 * i) for i in range(5)})
    weighting = Shapley().compute_weights(CoalitionState(), facts(), round)
    assert weighting.diagnostics["evaluations"] == 2**5
    assert math.fsum(weighting.diagnostics["values"].values()) == pytest.approx(weighting.diagnostics["gain"])


def test_too_many_clients_are_refused_by_the_name_of_the_setting() -> None:
    round = round_of(dict.fromkeys("abc", (1, 1)))
    with pytest.raises(CelmError, match=r"rule\.limit"):
        Shapley(limit=2).compute_weights(CoalitionState(), facts(), round)


def test_values_add_up_over_rounds_with_decay() -> None:
    rounds = [{"a": (400, 400), "b": (800, 800)}, {"a": (900, 700), "b": (200, 100)}]
    for decay in (1.0, 0.5, 0.0):
        state, seen = CoalitionState(), []
        for number, hits in enumerate(rounds, start=1):
            weighting = Shapley(decay=decay).compute_weights(state, facts(), round_of(hits, number))
            state = weighting.state
            seen.append(weighting.diagnostics["values"])
        assert state.by_client == pytest.approx(
            {name: decay * seen[0][name] + seen[1][name] for name in "ab"}
        )
