"""What all rules on games of coalitions have in common."""

from __future__ import annotations

import json
from collections.abc import Sequence

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from celm.models.averaging import weighted_mean
from celm.models.state import StateDict
from celm.rules.coalitions import CoalitionRule, Game, Values, clamped, marginals, round_game
from celm.rules.exchange import Round
from celm.rules.gtg_shapley import GtgShapley
from celm.rules.leave_one_out import LeaveOneOut
from celm.rules.shapley import Shapley
from celm.rules.tmc_shapley import TmcShapley
from rules.games import airport, facts, round_of, validate
from rules.rounds import on_simplex

RULES: list[CoalitionRule] = [LeaveOneOut(), Shapley(), TmcShapley(), GtgShapley()]
EVERY_RULE = pytest.mark.parametrize("rule", RULES, ids=lambda rule: type(rule).__name__)


def test_a_coalition_is_asked_for_once_and_in_batches() -> None:
    asked: list[list[int]] = []

    def utility(coalitions: Sequence[int]) -> list[float]:
        asked.append(list(coalitions))
        return [float(coalition) for coalition in coalitions]

    game = Game(3, utility, batch=2)
    assert game.values([5, 1, 5, 3]) == [5.0, 1.0, 5.0, 3.0]
    assert game.values([3, 7, 1]) == [3.0, 7.0, 1.0]
    assert asked == [[5, 1], [3], [7]]
    assert game.evaluations == 4
    assert game.ends() == (0.0, 7.0)


def test_marginals_are_by_player_along_each_order() -> None:
    added = marginals(airport([1.0, 2.0, 4.0]), [[0, 1, 2], [2, 1, 0], [1, 0, 2]], tolerance=0)
    assert added.tolist() == [[1.0, 1.0, 2.0], [0.0, 0.0, 4.0], [0.0, 2.0, 2.0]]


def test_an_order_ends_near_the_whole_and_the_rest_is_not_evaluated() -> None:
    game = airport([1.0, 3.95, 4.0])
    added = marginals(game, [[1, 0, 2], [0, 2, 1]], tolerance=0.1)
    assert added.tolist() == [[0.0, 3.95, 0.0], [1.0, 0.0, 3.0]]
    assert sorted(game.known) == [0b000, 0b001, 0b010, 0b101, 0b111]


def test_a_coalition_is_the_equal_average_of_its_models_and_nobody_is_the_start() -> None:
    clients = {"b": (300, 500), "a": (700, 500)}
    game = round_game(round_of(clients), ["a", "b"], "accuracy")
    assert game.values([0b00, 0b01, 0b10, 0b11]) == [0.1, 0.6, 0.4, 0.5]


def test_utility_may_be_balanced() -> None:
    def skewed(models: Sequence[StateDict]) -> list[Tensor]:
        return [torch.tensor([[90, 0], [10, 0]]) for _ in models]

    round = round_of({"a": (0, 0)}, validate=skewed)
    assert round_game(round, ["a"], "accuracy").values([1]) == [0.9]
    assert round_game(round, ["a"], "balanced_accuracy").values([1]) == [0.5]


def test_the_rounds_own_average_makes_the_models() -> None:
    def first(models: Sequence[StateDict], weights: Sequence[float]) -> StateDict:
        assert weights == [1 / len(models)] * len(models)
        return models[0]

    game = round_game(round_of({"a": (200, 200), "b": (800, 800)}, average=first), ["a", "b"], "accuracy")
    assert game.values([0b11]) == [0.2]


def test_large_models_are_judged_a_few_at_a_time() -> None:
    small = round_of({"a": (1, 1)})
    large = Round(1, 0.1, {"w": torch.zeros(1).expand(2**26)}, {}, small.updates, validate)
    assert round_game(small, ["a"], "accuracy").batch == 64
    assert round_game(large, ["a"], "accuracy").batch == 4


@given(st.dictionaries(st.text(max_size=3), st.floats(-1e6, 1e6), min_size=1))
def test_clamped_is_on_the_simplex_and_gives_nothing_to_the_negative(values: dict[str, float]) -> None:
    weights = clamped(values)
    assert on_simplex(weights)
    if max(values.values()) > 1e-9:
        assert all(weights[name] == 0 for name, value in values.items() if value <= 0)


def test_what_is_positive_by_rounding_alone_gets_no_weight() -> None:
    assert clamped({"a": 1e-17, "b": 0.0}) == {"a": 0.5, "b": 0.5}


def test_values_add_up_absent_keep_theirs_and_newcomers_start_at_the_mean() -> None:
    state = Values().plus({"c10": 0.5, "c2": -0.1}, 1.0)
    assert state.of == {"c2": -0.1, "c10": 0.5}
    assert list(state.of) == ["c2", "c10"]
    state = state.plus({"c10": 0.1, "c3": 0.0}, 0.5)
    assert state.of == pytest.approx({"c2": -0.1, "c3": 0.1, "c10": 0.35})
    assert list(state.of) == ["c2", "c3", "c10"]


@EVERY_RULE
def test_a_client_alone_has_all_the_gain(rule: CoalitionRule) -> None:
    weighing = rule.weigh(rule.init(facts()), facts(), round_of({"a": (500, 700)}))
    assert weighing.weights == weighing.standing == weighing.scores == {"a": 1.0}
    assert weighing.diagnostics["values"] == pytest.approx({"a": 0.5})
    assert weighing.diagnostics["evaluations"] == 2


@EVERY_RULE
def test_two_clients_by_hand(rule: CoalitionRule) -> None:
    """v: nobody .1, a .2, b .6, both .4."""
    weighing = rule.weigh(rule.init(facts()), facts(), round_of({"a": (200, 200), "b": (600, 600)}))
    one_out = {"a": -0.2, "b": 0.2}
    fair = {"a": (0.1 - 0.2) / 2, "b": (0.5 + 0.2) / 2}
    sampled = 0.11 if isinstance(rule, TmcShapley) else 1e-12
    expected = one_out if isinstance(rule, LeaveOneOut) else fair
    assert weighing.diagnostics["values"] == pytest.approx(expected, abs=sampled)
    assert weighing.weights == {"a": 0.0, "b": 1.0}
    assert weighing.diagnostics["gain"] == pytest.approx(0.3)


@EVERY_RULE
def test_equal_models_count_the_same(rule: CoalitionRule) -> None:
    clients = dict.fromkeys(["a", "b", "c"], (500, 500))
    weighing = rule.weigh(rule.init(facts()), facts(), round_of(clients))
    if isinstance(rule, TmcShapley | GtgShapley):  # whoever comes first has all the gain; sampled
        assert weighing.weights == pytest.approx(dict.fromkeys(clients, 1 / 3), abs=0.1)
    else:
        assert weighing.weights == dict.fromkeys(clients, 1 / 3)


@EVERY_RULE
def test_a_round_without_gain_counts_all_the_same(rule: CoalitionRule) -> None:
    clients = dict.fromkeys(["a", "b"], (100, 100))
    weighing = rule.weigh(rule.init(facts()), facts(), round_of(clients))
    assert weighing.weights == weighing.standing == {"a": 0.5, "b": 0.5}
    assert weighing.diagnostics["values"] == {"a": 0.0, "b": 0.0}


@EVERY_RULE
def test_absent_clients_keep_their_value_and_late_ones_are_known(rule: CoalitionRule) -> None:
    first = rule.weigh(rule.init(facts()), facts(), round_of({"a": (900, 900), "b": (300, 300)}))
    second = rule.weigh(first.state, facts(), round_of({"b": (700, 700), "c": (800, 800)}, 2))
    assert second.state.of["a"] == first.state.of["a"]
    mean = (first.state.of["a"] + first.state.of["b"]) / 2
    assert second.state.of["c"] == mean + second.diagnostics["values"]["c"]
    assert set(second.weights) == {"b", "c"}
    assert set(second.standing) == {"a", "b", "c"}


def test_order_of_arrival_does_not_matter() -> None:
    clients = {f"client-{i}": (100 * i, 37 * i) for i in range(1, 5)}
    backwards = dict(reversed(clients.items()))
    for rule in RULES:
        there, back = (rule.weigh(Values(), facts(), round_of(hits)) for hits in (clients, backwards))
        assert there.weights == back.weights
        assert there.diagnostics == back.diagnostics


def test_sampling_differs_by_round_and_by_seed() -> None:
    rule = TmcShapley(permutations=3, precision=0)
    clients = {f"client-{i}": (i * i * 60, i * 100) for i in range(6)}
    states = {
        json.dumps(dict(rule.weigh(Values(), facts(seed), round_of(clients, number)).state.of))
        for seed, number in ((1, 1), (1, 2), (2, 1))
    }
    assert len(states) == 3


def test_weights_merge_the_models() -> None:
    rule = Shapley()
    round = round_of({"a": (200, 200), "b": (600, 600)})
    weighing = rule.weigh(Values(), facts(), round)
    merged = rule.merge(weighing.state, round, weighing)
    assert torch.equal(merged["hits"], weighted_mean([round.updates["b"].model], [1.0])["hits"])
