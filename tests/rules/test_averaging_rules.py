"""Rules that estimate nothing: FedAvg, by number or by size, and every client alone."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
import torch
from torch import Tensor, nn

from celm.rules.exchange import Round
from celm.rules.fedavg import FedAvg
from celm.rules.rule import Facts
from celm.rules.standalone import Standalone
from rules import rounds

START = {"w": torch.zeros(2), "seen": torch.tensor(0)}


def facts(*clients: str) -> Facts:
    return rounds.facts_of(nn.Linear(1, 2), clients)


def state(*values: float, seen: int = 1) -> dict[str, Tensor]:
    return {"w": torch.tensor(values, dtype=torch.float32), "seen": torch.tensor(seen)}


def a_round(
    number: int, models: Mapping[str, dict[str, Tensor]], sizes: Mapping[str, int] | None = None
) -> Round:
    return rounds.a_round(START, models, number, sizes=sizes)


def test_fedavg_is_the_plain_mean_whatever_sizes_are_said() -> None:
    rule, federation = FedAvg(), facts("a", "b", "c")
    round = a_round(1, {"a": state(1, 0), "b": state(2, 3), "c": state(6, 0)}, {"a": 10**9})
    weighing = rule.weigh(rule.init(federation), federation, round)
    assert weighing.weights == {"a": 1 / 3, "b": 1 / 3, "c": 1 / 3}
    assert rule.merge(weighing.state, round, weighing)["w"].tolist() == pytest.approx([3, 1])
    assert (weighing.scores, weighing.evidence, weighing.inputs) == (None, None, None)


def test_fedavg_by_size_weighs_by_samples() -> None:
    rule, federation = FedAvg(by_size=True), facts("a", "b")
    round = a_round(1, {"a": state(1, 0), "b": state(5, 8, seen=7)}, {"a": 30, "b": 10})
    weighing = rule.weigh(rule.init(federation), federation, round)
    assert weighing.weights == {"a": 0.75, "b": 0.25}
    merged = rule.merge(weighing.state, round, weighing)
    assert merged["w"].tolist() == [2.0, 2.0]
    assert merged["seen"].item() == 1  # of the heaviest


def test_fedavg_by_size_of_empty_clients_is_uniform() -> None:
    rule, federation = FedAvg(by_size=True), facts("a", "b")
    round = a_round(1, {"a": state(1, 0), "b": state(5, 8)}, {"a": 0, "b": 0})
    assert rule.weigh(rule.init(federation), federation, round).weights == {"a": 0.5, "b": 0.5}


def test_fedavg_standing_is_over_all_clients_seen_by_their_last_size() -> None:
    rule, federation = FedAvg(by_size=True), facts("a", "b", "c")
    first = rule.weigh(
        rule.init(federation),
        federation,
        a_round(1, {"b": state(0, 0), "a": state(0, 0)}, {"a": 2, "b": 6}),
    )
    second = rule.weigh(
        first.state,
        federation,
        a_round(2, {"c": state(0, 0), "b": state(0, 0)}, {"b": 3, "c": 5}),
    )
    assert second.weights == pytest.approx({"b": 3 / 8, "c": 5 / 8})
    assert second.standing == pytest.approx({"a": 0.2, "b": 0.3, "c": 0.5})
    assert list(second.standing) == ["a", "b", "c"]


def test_alone_everybody_goes_on_from_its_own_model() -> None:
    rule, federation = Standalone(), facts("a", "b", "c")
    models = {"a": state(1, 1), "b": state(2, 2)}
    round = a_round(1, models)
    before = rule.init(federation)
    weighing = rule.weigh(before, federation, round)
    assert rule.personal
    assert rule.deliver(before, START, "a").model is START
    assert rule.deliver(weighing.state, START, "a").model["w"].tolist() == [1, 1]
    assert rule.deliver(weighing.state, START, "b").model["w"].tolist() == [2, 2]
    assert rule.deliver(weighing.state, START, "c").model is START  # not seen yet
    assert rule.merge(weighing.state, round, weighing) is START
    assert weighing.weights == {"a": 0.5, "b": 0.5}
    later = rule.weigh(weighing.state, federation, a_round(2, {"c": state(3, 3), "a": state(4, 4)}))
    assert rule.deliver(later.state, START, "a").model["w"].tolist() == [4, 4]
    assert rule.deliver(later.state, START, "b").model["w"].tolist() == [2, 2]
    assert later.weights == {"c": 0.5, "a": 0.5}
    assert later.standing == pytest.approx(dict.fromkeys("abc", 1 / 3))
