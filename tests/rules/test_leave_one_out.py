"""Leave-one-out against games whose losses are known."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import permutations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from celm.rules.coalitions import CoalitionState, Game
from celm.rules.leave_one_out import LeaveOneOut, leave_one_out_values
from support.games import additive, airport, facts, majority, members, round_of, table_game, unanimity


@pytest.mark.parametrize(
    ("game", "values"),
    [
        (additive([0.5, -2.0, 0.25]), [0.5, -2.0, 0.25]),
        (unanimity(4, frozenset({1, 3})), [0, 1, 0, 1]),
        (airport([1.0, 2.5, 4.0]), [0, 0, 1.5]),
        (airport([1.0, 4.0, 4.0]), [0, 0, 0]),
        (majority(5), [0] * 5),
        (majority(2), [1, 1]),
    ],
    ids=["additive", "unanimity", "airport", "twins", "majority", "majority of two"],
)
def test_known_games(game: Game, values: Sequence[float]) -> None:
    assert leave_one_out_values(game) == pytest.approx(values)


@given(st.lists(st.floats(-1, 1), min_size=16, max_size=16), st.sampled_from(list(permutations(range(4)))))
def test_permuting_clients_permutes_values_exactly(table: list[float], order: tuple[int, ...]) -> None:
    renamed = [table[sum(1 << order[i] for i in members(coalition))] for coalition in range(16)]
    values = leave_one_out_values(table_game(table))
    assert values == [table[15] - table[15 - (1 << i)] for i in range(4)]
    assert leave_one_out_values(table_game(renamed)) == [values[i] for i in order]


def test_a_round_takes_one_evaluation_per_client_and_two() -> None:
    round = round_of({f"client-{i}": (100 * i, 50 * i) for i in range(6)})
    assert LeaveOneOut().compute_weights(CoalitionState(), facts(), round).diagnostics["evaluations"] == 6 + 2
