"""When clients are re-checked after the warm-up, with which probes, and what an idle client loses."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from celm.core.probe import ProbeResult, probe
from celm.core.weights import ClientWeights
from celm.rules.celm_parts.idle import IdleState
from celm.rules.celm_parts.idle_check import Every, Never, OnDrift, exclude_idle, parse_idle_check, recheck
from celm.rules.messages import RoundData
from celm.rules.rule import ProbeSettings, ServerContext
from support.rule_rounds import a_round

CLASSES, FEATURES = 3, 5
INPUTS = torch.randn(CLASSES, FEATURES, generator=torch.Generator().manual_seed(1))
State = dict[str, Tensor]


def model(seed: int, size: float = 1.0) -> State:
    draw = torch.Generator().manual_seed(seed)
    weight = size * torch.randn(CLASSES, FEATURES, generator=draw)
    return {"weight": weight, "bias": torch.zeros(CLASSES)}


GLOBAL = model(0)
TRAINED = {
    name: {key: tensor + model(seed, 0.3)[key] for key, tensor in GLOBAL.items()}
    for seed, name in enumerate("abc", start=1)
}


class CountedProbes:
    def __init__(self) -> None:
        self.starts: list[Tensor] = []
        self.context = ServerContext(
            ("a", "b", "c"),
            CLASSES,
            (FEATURES,),
            10,
            3,
            nn.Linear(FEATURES, CLASSES),
            (),
            ProbeSettings(steps=10),
            self.probe,
        )

    def probe(self, models: Any, inputs: Tensor, *args: Any, **settings: Any) -> ProbeResult:
        self.starts.append(inputs[0])
        return probe(models, inputs, *args, **settings)


def round_data(**changed: State) -> RoundData:
    return a_round(GLOBAL, {**TRAINED, **changed}, 9)


def test_checks_are_due_by_rounds_after_the_warm_up() -> None:
    rounds = range(1, 7)
    assert [Never().due(number) for number in rounds] == ["no"] * 6
    assert [Every(3).due(number) for number in rounds] == ["no", "no", "full"] * 2
    assert [OnDrift().due(number) for number in rounds] == ["cheap"] * 6


def test_the_setting_is_parsed() -> None:
    assert isinstance(parse_idle_check("never"), Never)
    assert parse_idle_check("every:12") == Every(12)
    assert isinstance(parse_idle_check("on-drift"), OnDrift)


def test_a_round_without_a_check_changes_nothing_and_probes_nothing() -> None:
    probes, state = CountedProbes(), IdleState(idle=("b",))
    result = recheck("no", state, INPUTS, probes.context, round_data(a=GLOBAL))
    assert (result.state, result.diagnostics) == (state, {"idle": ["b"], "movement": {}})
    assert result.global_inputs is INPUTS
    assert probes.starts == []


def test_a_cheap_check_uses_the_last_inputs_if_every_client_trains() -> None:
    probes = CountedProbes()
    result = recheck("cheap", IdleState(idle=("b",)), INPUTS, probes.context, round_data())
    assert result.diagnostics["idle"] == []
    assert set(result.movement) == {"a", "b", "c"}
    assert result.global_inputs is INPUTS
    assert probes.starts == []


def test_a_cheap_check_that_finds_an_idle_client_is_repeated_with_a_new_probe() -> None:
    probes = CountedProbes()
    result = recheck("cheap", IdleState(), INPUTS, probes.context, round_data(b=GLOBAL))
    assert result.state.idle == ("b",)
    assert len(probes.starts) == 1
    assert torch.equal(probes.starts[0], INPUTS)
    assert result.global_inputs is not None
    assert not torch.equal(result.global_inputs, INPUTS)


def test_a_cheap_check_without_inputs_probes_once() -> None:
    probes = CountedProbes()
    result = recheck("cheap", IdleState(), None, probes.context, round_data())
    assert len(probes.starts) == 1
    assert result.global_inputs is not None


def test_a_full_check_probes_once_from_the_last_inputs() -> None:
    probes = CountedProbes()
    result = recheck("full", IdleState(), INPUTS, probes.context, round_data(c=GLOBAL))
    assert result.diagnostics["idle"] == ["c"]
    assert result.movement["c"] == pytest.approx(0, abs=1e-6)
    assert len(probes.starts) == 1
    assert torch.equal(probes.starts[0], INPUTS)


def test_an_idle_client_has_no_weight_and_the_others_keep_their_proportions() -> None:
    weights = ClientWeights({"a": 0.1, "b": 0.5, "c": 0.4})
    aggregation_weights, client_weights = exclude_idle(weights, ["b"], ["a", "b"])
    assert aggregation_weights == pytest.approx({"a": 1.0, "b": 0.0})
    assert client_weights == pytest.approx({"a": 0.2, "b": 0.0, "c": 0.8})


def test_if_all_present_clients_are_idle_they_keep_their_aggregation_weights() -> None:
    weights = ClientWeights({"a": 0.1, "b": 0.5, "c": 0.4})
    aggregation_weights, client_weights = exclude_idle(weights, ["a", "b"], ["a", "b"])
    assert aggregation_weights == pytest.approx({"a": 1 / 6, "b": 5 / 6})
    assert client_weights == pytest.approx({"a": 0.0, "b": 0.0, "c": 1.0})
