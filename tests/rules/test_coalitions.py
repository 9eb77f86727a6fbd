"""Properties shared by all rules on games of coalitions."""

from __future__ import annotations

import json
from collections.abc import Sequence

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from celm.models.averaging import weighted_mean
from celm.models.state_dict import StateDict
from celm.rules.coalitions import (
    CoalitionRule,
    CoalitionState,
    Game,
    make_round_game,
    marginal_contributions,
    positive_shares,
)
from celm.rules.gtg_shapley import GtgShapley
from celm.rules.leave_one_out import LeaveOneOut
from celm.rules.messages import RoundData
from celm.rules.shapley import Shapley
from celm.rules.tmc_shapley import TmcShapley
from support.games import airport, facts, round_of, validate
from support.rule_rounds import on_simplex

RULES: list[CoalitionRule] = [LeaveOneOut(), Shapley(), TmcShapley(), GtgShapley()]
EVERY_RULE = pytest.mark.parametrize("rule", RULES, ids=lambda rule: type(rule).__name__)


def test_a_coalition_is_evaluated_once_and_in_batches() -> None:
    asked: list[list[int]] = []

    def utility(coalitions: Sequence[int]) -> list[float]:
        asked.append(list(coalitions))
        return [float(coalition) for coalition in coalitions]

    game = Game(3, utility, batch_size=2)
    assert game.values([5, 1, 5, 3]) == [5.0, 1.0, 5.0, 3.0]
    assert game.values([3, 7, 1]) == [3.0, 7.0, 1.0]
    assert asked == [[5, 1], [3], [7]]
    assert game.evaluations == 4
    assert game.empty_and_grand() == (0.0, 7.0)


def test_marginals_are_by_player_along_each_order() -> None:
    added = marginal_contributions(airport([1.0, 2.0, 4.0]), [[0, 1, 2], [2, 1, 0], [1, 0, 2]], tolerance=0)
    assert added.tolist() == [[1.0, 1.0, 2.0], [0.0, 0.0, 4.0], [0.0, 2.0, 2.0]]


def test_an_order_ends_close_to_the_grand_coalition_and_the_rest_is_not_evaluated() -> None:
    game = airport([1.0, 3.95, 4.0])
    added = marginal_contributions(game, [[1, 0, 2], [0, 2, 1]], tolerance=0.1)
    assert added.tolist() == [[0.0, 3.95, 0.0], [1.0, 0.0, 3.0]]
    assert sorted(game.cache) == [0b000, 0b001, 0b010, 0b101, 0b111]


def test_a_coalition_is_the_equal_average_of_its_models_and_the_empty_one_the_start() -> None:
    clients = {"b": (300, 500), "a": (700, 500)}
    game = make_round_game(round_of(clients), ["a", "b"], "accuracy")
    assert game.values([0b00, 0b01, 0b10, 0b11]) == [0.1, 0.6, 0.4, 0.5]


def test_utility_may_be_balanced() -> None:
    def skewed(models: Sequence[StateDict]) -> list[Tensor]:
        return [torch.tensor([[90, 0], [10, 0]]) for _ in models]

    round = round_of({"a": (0, 0)}, validate=skewed)
    assert make_round_game(round, ["a"], "accuracy").values([1]) == [0.9]
    assert make_round_game(round, ["a"], "balanced_accuracy").values([1]) == [0.5]


def test_the_rounds_own_average_makes_the_models() -> None:
    def first(models: Sequence[StateDict], weights: Sequence[float]) -> StateDict:
        assert weights == [1 / len(models)] * len(models)
        return models[0]

    game = make_round_game(
        round_of({"a": (200, 200), "b": (800, 800)}, average=first), ["a", "b"], "accuracy"
    )
    assert game.values([0b11]) == [0.2]


def test_large_models_are_evaluated_a_few_at_a_time() -> None:
    small = round_of({"a": (1, 1)})
    large = RoundData(1, {"w": torch.zeros(1).expand(2**26)}, {}, small.updates, validate)
    assert make_round_game(small, ["a"], "accuracy").batch_size == 64
    assert make_round_game(large, ["a"], "accuracy").batch_size == 4


@given(st.dictionaries(st.text(max_size=3), st.floats(-1e6, 1e6), min_size=1))
def test_positive_shares_are_on_the_simplex_and_negative_values_get_nothing(values: dict[str, float]) -> None:
    weights = positive_shares(values)
    assert on_simplex(weights)
    if max(values.values()) > 1e-9:
        assert all(weights[name] == 0 for name, value in values.items() if value <= 0)


def test_a_value_that_is_positive_by_rounding_alone_gets_no_weight() -> None:
    assert positive_shares({"a": 1e-17, "b": 0.0}) == {"a": 0.5, "b": 0.5}


def test_values_add_up_and_absent_clients_keep_theirs_and_newcomers_start_at_the_mean() -> None:
    state = CoalitionState().add({"c10": 0.5, "c2": -0.1}, 1.0)
    assert state.by_client == {"c2": -0.1, "c10": 0.5}
    assert list(state.by_client) == ["c2", "c10"]
    state = state.add({"c10": 0.1, "c3": 0.0}, 0.5)
    assert state.by_client == pytest.approx({"c2": -0.1, "c3": 0.1, "c10": 0.35})
    assert list(state.by_client) == ["c2", "c3", "c10"]


@EVERY_RULE
def test_a_client_alone_has_all_the_gain(rule: CoalitionRule) -> None:
    weighting = rule.compute_weights(rule.init(facts()), facts(), round_of({"a": (500, 700)}))
    assert weighting.aggregation_weights == weighting.client_weights == weighting.scores == {"a": 1.0}
    assert weighting.diagnostics["values"] == pytest.approx({"a": 0.5})
    assert weighting.diagnostics["evaluations"] == 2


@EVERY_RULE
def test_two_clients_by_hand(rule: CoalitionRule) -> None:
    """v: empty .1, a .2, b .6, both .4."""
    weighting = rule.compute_weights(
        rule.init(facts()), facts(), round_of({"a": (200, 200), "b": (600, 600)})
    )
    one_out = {"a": -0.2, "b": 0.2}
    fair = {"a": (0.1 - 0.2) / 2, "b": (0.5 + 0.2) / 2}
    sampled = 0.11 if isinstance(rule, TmcShapley) else 1e-12
    expected = one_out if isinstance(rule, LeaveOneOut) else fair
    assert weighting.diagnostics["values"] == pytest.approx(expected, abs=sampled)
    assert weighting.aggregation_weights == {"a": 0.0, "b": 1.0}
    assert weighting.diagnostics["gain"] == pytest.approx(0.3)


@EVERY_RULE
def test_equal_models_count_the_same(rule: CoalitionRule) -> None:
    clients = dict.fromkeys(["a", "b", "c"], (500, 500))
    weighting = rule.compute_weights(rule.init(facts()), facts(), round_of(clients))
    if isinstance(rule, TmcShapley | GtgShapley):  # whoever comes first has all the gain; sampled
        assert weighting.aggregation_weights == pytest.approx(dict.fromkeys(clients, 1 / 3), abs=0.1)
    else:
        assert weighting.aggregation_weights == dict.fromkeys(clients, 1 / 3)


@EVERY_RULE
def test_a_round_without_gain_gives_equal_weights(rule: CoalitionRule) -> None:
    clients = dict.fromkeys(["a", "b"], (100, 100))
    weighting = rule.compute_weights(rule.init(facts()), facts(), round_of(clients))
    assert weighting.aggregation_weights == weighting.client_weights == {"a": 0.5, "b": 0.5}
    assert weighting.diagnostics["values"] == {"a": 0.0, "b": 0.0}


@EVERY_RULE
def test_absent_clients_keep_their_value_and_newcomers_are_added(rule: CoalitionRule) -> None:
    first = rule.compute_weights(rule.init(facts()), facts(), round_of({"a": (900, 900), "b": (300, 300)}))
    second = rule.compute_weights(first.state, facts(), round_of({"b": (700, 700), "c": (800, 800)}, 2))
    assert second.state.by_client["a"] == first.state.by_client["a"]
    mean = (first.state.by_client["a"] + first.state.by_client["b"]) / 2
    assert second.state.by_client["c"] == mean + second.diagnostics["values"]["c"]
    assert set(second.aggregation_weights) == {"b", "c"}
    assert set(second.client_weights) == {"a", "b", "c"}


def test_order_of_arrival_does_not_matter() -> None:
    clients = {f"client-{i}": (100 * i, 37 * i) for i in range(1, 5)}
    backwards = dict(reversed(clients.items()))
    for rule in RULES:
        there, back = (
            rule.compute_weights(CoalitionState(), facts(), round_of(hits)) for hits in (clients, backwards)
        )
        assert there.aggregation_weights == back.aggregation_weights
        assert there.diagnostics == back.diagnostics


def test_sampling_differs_by_round_and_by_seed() -> None:
    rule = TmcShapley(permutations=3, precision=0)
    clients = {f"client-{i}": (i * i * 60, i * 100) for i in range(6)}
    states = {
        json.dumps(
            dict(
                rule.compute_weights(CoalitionState(), facts(seed), round_of(clients, number)).state.by_client
            )
        )
        for seed, number in ((1, 1), (1, 2), (2, 1))
    }
    assert len(states) == 3


def test_weights_average_the_models() -> None:
    rule = Shapley()
    round = round_of({"a": (200, 200), "b": (600, 600)})
    weighting = rule.compute_weights(CoalitionState(), facts(), round)
    merged = rule.aggregate(weighting.state, round, weighting)
    assert torch.equal(merged["hits"], weighted_mean([round.updates["b"].model], [1.0])["hits"])
