"""Rules without an estimate: FedAvg, equal or by size, and standalone training."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
import torch
from torch import Tensor, nn

from celm.rules.fedavg import FedAvg
from celm.rules.messages import RoundData
from celm.rules.rule import ServerContext
from celm.rules.standalone import Standalone
from support import rule_rounds

START = {"w": torch.zeros(2), "seen": torch.tensor(0)}


def facts(*clients: str) -> ServerContext:
    return rule_rounds.facts_of(nn.Linear(1, 2), clients)


def state(*values: float, seen: int = 1) -> dict[str, Tensor]:
    return {"w": torch.tensor(values, dtype=torch.float32), "seen": torch.tensor(seen)}


def a_round(
    number: int, models: Mapping[str, dict[str, Tensor]], sizes: Mapping[str, int] | None = None
) -> RoundData:
    return rule_rounds.a_round(START, models, number, sizes=sizes)


def test_fedavg_is_the_plain_mean_whatever_the_reported_sizes() -> None:
    rule, federation = FedAvg(), facts("a", "b", "c")
    round = a_round(1, {"a": state(1, 0), "b": state(2, 3), "c": state(6, 0)}, {"a": 10**9})
    weighting = rule.compute_weights(rule.init(federation), federation, round)
    assert weighting.aggregation_weights == {"a": 1 / 3, "b": 1 / 3, "c": 1 / 3}
    assert rule.aggregate(weighting.state, round, weighting)["w"].tolist() == pytest.approx([3, 1])
    assert (weighting.scores, weighting.evidence, weighting.probe_inputs) == (None, None, None)


def test_fedavg_by_size_weights_by_samples() -> None:
    rule, federation = FedAvg(by_size=True), facts("a", "b")
    round = a_round(1, {"a": state(1, 0), "b": state(5, 8, seen=7)}, {"a": 30, "b": 10})
    weighting = rule.compute_weights(rule.init(federation), federation, round)
    assert weighting.aggregation_weights == {"a": 0.75, "b": 0.25}
    merged = rule.aggregate(weighting.state, round, weighting)
    assert merged["w"].tolist() == [2.0, 2.0]
    assert merged["seen"].item() == 1  # of the heaviest


def test_fedavg_by_size_of_empty_clients_is_uniform() -> None:
    rule, federation = FedAvg(by_size=True), facts("a", "b")
    round = a_round(1, {"a": state(1, 0), "b": state(5, 8)}, {"a": 0, "b": 0})
    assert rule.compute_weights(rule.init(federation), federation, round).aggregation_weights == {
        "a": 0.5,
        "b": 0.5,
    }


def test_fedavg_client_weights_cover_all_clients_seen_by_their_last_size() -> None:
    rule, federation = FedAvg(by_size=True), facts("a", "b", "c")
    first = rule.compute_weights(
        rule.init(federation),
        federation,
        a_round(1, {"b": state(0, 0), "a": state(0, 0)}, {"a": 2, "b": 6}),
    )
    second = rule.compute_weights(
        first.state,
        federation,
        a_round(2, {"c": state(0, 0), "b": state(0, 0)}, {"b": 3, "c": 5}),
    )
    assert second.aggregation_weights == pytest.approx({"b": 3 / 8, "c": 5 / 8})
    assert second.client_weights == pytest.approx({"a": 0.2, "b": 0.3, "c": 0.5})
    assert list(second.client_weights) == ["a", "b", "c"]


def test_standalone_clients_continue_from_their_own_models() -> None:
    rule, federation = Standalone(), facts("a", "b", "c")
    models = {"a": state(1, 1), "b": state(2, 2)}
    round = a_round(1, models)
    before = rule.init(federation)
    weighting = rule.compute_weights(before, federation, round)
    assert rule.personal
    assert rule.message_for(before, START, "a").model is START
    assert rule.message_for(weighting.state, START, "a").model["w"].tolist() == [1, 1]
    assert rule.message_for(weighting.state, START, "b").model["w"].tolist() == [2, 2]
    assert rule.message_for(weighting.state, START, "c").model is START  # not seen yet
    assert rule.aggregate(weighting.state, round, weighting) is START
    assert weighting.aggregation_weights == {"a": 0.5, "b": 0.5}
    later = rule.compute_weights(
        weighting.state, federation, a_round(2, {"c": state(3, 3), "a": state(4, 4)})
    )
    assert rule.message_for(later.state, START, "a").model["w"].tolist() == [4, 4]
    assert rule.message_for(later.state, START, "b").model["w"].tolist() == [2, 2]
    assert later.aggregation_weights == {"c": 0.5, "a": 0.5}
    assert later.client_weights == pytest.approx(dict.fromkeys("abc", 1 / 3))
