"""Idle and silent clients in the rule `celm`: no evidence in a calibrated warm-up, no weight after it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from celm.base.errors import CelmError
from celm.core.idle_detection import is_idle, relative_movement
from celm.core.model_stack import ModelStack
from celm.core.weights import ClientWeights
from celm.rules import rules
from celm.rules.celm import Celm, CelmState
from celm.rules.celm_parts.attendance import Attendance
from celm.rules.celm_parts.idle import IdleState
from celm.rules.celm_parts.idle_check import recheck
from celm.rules.rule import ProbeSettings, ServerContext, WeightingResult
from support import rule_rounds

NAMES = ("client-0", "client-1", "client-2", "client-3")
FROZEN = {"client-0": 0.1, "client-1": 0.2, "client-2": 0.3, "client-3": 0.4}
ONCE = dict.fromkeys(NAMES, 1)
CLASSES, FEATURES = 3, 5
State = dict[str, Tensor]


def network() -> nn.Sequential:
    return nn.Sequential(nn.Linear(FEATURES, 16), nn.ReLU(), nn.Linear(16, CLASSES))


CONTEXT = ServerContext(
    NAMES, CLASSES, (FEATURES,), 100, 3, network(), ("2.weight", "2.bias"), ProbeSettings(steps=20)
)


def start() -> State:
    torch.manual_seed(0)
    return {name: tensor.clone() for name, tensor in network().state_dict().items()}


def trained(seed: int) -> State:
    """Train for a few steps on the client's own data."""
    module = network()
    module.load_state_dict(start())
    draw = torch.Generator().manual_seed(seed)
    x, y = torch.randn(64, FEATURES, generator=draw), torch.randint(0, CLASSES, (64,), generator=draw)
    optimiser = torch.optim.SGD(module.parameters(), lr=0.5)
    for _ in range(20):
        optimiser.zero_grad()
        F.cross_entropy(module(x), y).backward()
        optimiser.step()
    return {name: tensor.detach().clone() for name, tensor in module.state_dict().items()}


def scaled(state: State, factor: float) -> State:
    return {name: factor * tensor if name.startswith("2.") else tensor for name, tensor in state.items()}


def compute_weights(
    rule: Celm, number: int, models: Mapping[str, State], state: CelmState | None = None
) -> WeightingResult[CelmState]:
    return rule.compute_weights(
        state or CelmState(ClientWeights(FROZEN)), CONTEXT, rule_rounds.a_round(start(), models, number)
    )


HONEST = {name: trained(seed) for seed, name in enumerate(NAMES)}


@pytest.mark.parametrize("idle_model", [start(), scaled(start(), 10)])
@pytest.mark.parametrize("idle_check", ["every:10", "on-drift"])
def test_a_client_that_returns_the_received_model_has_no_weight(idle_check: str, idle_model: State) -> None:
    result = compute_weights(Celm(idle_check=idle_check), 15, {**HONEST, "client-1": idle_model})
    assert result.aggregation_weights == pytest.approx(
        {"client-0": 0.125, "client-1": 0, "client-2": 0.375, "client-3": 0.5}
    )
    assert result.client_weights == pytest.approx(result.aggregation_weights)
    assert result.diagnostics["idle"] == ["client-1"]
    assert result.diagnostics["movement"]["client-1"] == pytest.approx(0, abs=1e-4)
    assert result.scores is None


def test_a_client_that_trains_again_gets_its_weight_back_at_the_next_check() -> None:
    rule = Celm(idle_check="every:10")
    stopped = compute_weights(rule, 15, {**HONEST, "client-1": start()})
    between = compute_weights(rule, 16, HONEST, stopped.state)
    assert between.aggregation_weights["client-1"] == 0
    assert between.diagnostics == {"idle": ["client-1"], "movement": {}}
    again = compute_weights(rule, 25, HONEST, between.state)
    assert again.aggregation_weights == pytest.approx(FROZEN)
    assert again.diagnostics["idle"] == []


def test_an_absent_client_stays_as_it_was_judged() -> None:
    rule = Celm(idle_check="on-drift")
    stopped = compute_weights(rule, 15, {**HONEST, "client-1": start()})
    others = {name: model for name, model in HONEST.items() if name != "client-1"}
    absent = compute_weights(rule, 16, others, stopped.state)
    assert absent.client_weights["client-1"] == 0
    assert math.fsum(absent.aggregation_weights.values()) == pytest.approx(1)


@pytest.mark.parametrize("part", [0.0, 0.01, 0.02, 0.03, 0.05, 0.1, 1.0])
def test_a_screening_changes_no_decision(part: float) -> None:
    """A part of an update is so small that a check with all noise inputs may find its client idle."""
    little = {name: tensor + part * (HONEST["client-1"][name] - tensor) for name, tensor in start().items()}
    round = rule_rounds.a_round(start(), {**HONEST, "client-1": little}, 15)
    inputs = torch.randn(CLASSES, FEATURES, generator=torch.Generator().manual_seed(1))
    delivered = ModelStack(network(), [round.messages[name].model for name in NAMES])
    returned = ModelStack(network(), [round.updates[name].model for name in NAMES])
    movement = relative_movement(delivered, returned, inputs, CONTEXT.seed, [start()])
    result = recheck("cheap", IdleState(), inputs, CONTEXT, round)
    if is_idle(movement).any():
        assert result.global_inputs is not inputs  # checked again with a new probe
        assert result.state.idle == ("client-1",)
    else:
        assert result.state.idle == ()
        assert list(result.movement.values()) == pytest.approx(movement.tolist(), rel=0.2)


def replayed(factor: float) -> State:
    """Return the received model, moved once more as the global model moved last."""
    return {name: tensor + factor * (tensor - PAST[name]) for name, tensor in start().items()}


PAST = {name: tensor - 0.1 * torch.sign(tensor) for name, tensor in start().items()}
"""The global model of the round before."""


@pytest.mark.parametrize("idle_model", [start(), scaled(start(), 10), replayed(3), scaled(replayed(1), 10)])
@pytest.mark.parametrize("keep", [True, False])
def test_in_a_calibrated_warm_up_an_idle_client_counts_as_absent(idle_model: State, keep: bool) -> None:
    context = replace(CONTEXT, probe=ProbeSettings(steps=20, keep_inputs=keep))
    rule, before = (
        Celm(evidence="calibrated"),
        CelmState(ClientWeights(FROZEN), idle=IdleState((PAST,)), attendance=Attendance(ONCE, ONCE)),
    )
    result = rule.compute_weights(
        before, context, rule_rounds.a_round(start(), {**HONEST, "client-1": idle_model}, 2)
    )
    assert result.diagnostics["idle"] == ["client-1"]
    assert result.evidence["client-1"] == [0.0] * CLASSES
    assert result.aggregation_weights["client-1"] == pytest.approx(0.5 * FROZEN["client-1"])
    others = {name: model for name, model in HONEST.items() if name != "client-1"}
    without = rule.compute_weights(before, context, rule_rounds.a_round(start(), others, 2))
    assert without.diagnostics["idle"] == []
    for name, row in without.evidence.items():
        assert result.evidence[name] == pytest.approx(row, abs=1e-4)


def test_a_client_that_never_trains_has_no_weight_from_the_first_round_on() -> None:
    rule, state = Celm(evidence="calibrated", warmup=1), Celm(evidence="calibrated").init(CONTEXT)
    for number in (1, 2):
        result = compute_weights(rule, number, {**HONEST, "client-1": start()}, state)
        assert result.aggregation_weights["client-1"] == 0
        state = result.state


def test_a_late_client_that_does_not_train_keeps_no_part_of_its_initial_weight() -> None:
    rule = Celm(evidence="calibrated", warmup=4)
    others = {name: model for name, model in HONEST.items() if name != "client-1"}
    first = compute_weights(rule, 1, others, rule.init(CONTEXT))
    late = compute_weights(rule, 2, {**HONEST, "client-1": start()}, first.state)
    assert late.diagnostics["idle"] == ["client-1"]
    assert late.aggregation_weights["client-1"] == late.client_weights["client-1"] == 0
    assert math.fsum(late.client_weights.values()) == pytest.approx(1)
    trains = compute_weights(rule, 2, HONEST, first.state)
    # It has its full score. The others were scored before and keep half of their weights.
    expected = {name: 0.5 * first.client_weights[name] + 0.5 * trains.scores[name] for name in others}
    expected["client-1"] = trains.scores["client-1"]
    total = math.fsum(expected.values())
    assert trains.client_weights == pytest.approx({name: weight / total for name, weight in expected.items()})


def without(name: str) -> dict[str, State]:
    return {other: model for other, model in HONEST.items() if other != name}


def round_with_silent(number: int, models: Mapping[str, State], *silent: str) -> rule_rounds.RoundData:
    """Return a round in which `silent` clients were requested and did not answer."""
    round = rule_rounds.a_round(start(), models, number)
    sent = next(iter(round.messages.values()))
    return replace(round, messages={**round.messages, **dict.fromkeys(silent, sent)})


def test_a_client_that_never_answers_has_no_weight() -> None:
    rule = Celm(evidence="calibrated", warmup=3)
    state = rule.init(CONTEXT)
    for number in (1, 2, 3):
        result = rule.compute_weights(
            state, CONTEXT, round_with_silent(number, without("client-1"), "client-1")
        )
        state = result.state
        assert result.client_weights["client-1"] == 0
        assert "client-1" not in result.scores
        assert math.fsum(result.aggregation_weights.values()) == pytest.approx(1)
    back = rule.compute_weights(state, CONTEXT, round_with_silent(4, HONEST))
    assert back.aggregation_weights["client-1"] == 0


def test_a_client_that_answers_one_of_three_requests_has_a_third_of_its_odds() -> None:
    rule = Celm(evidence="calibrated", warmup=3)
    first = rule.compute_weights(rule.init(CONTEXT), CONTEXT, round_with_silent(1, HONEST))
    second = rule.compute_weights(first.state, CONTEXT, round_with_silent(2, without("client-1"), "client-1"))
    third = rule.compute_weights(second.state, CONTEXT, round_with_silent(3, without("client-1"), "client-1"))
    before, after = first.client_weights["client-1"], third.client_weights["client-1"]
    assert before > 0.1
    assert after / (1 - after) == pytest.approx(before / (1 - before) / 3)
    frozen = rule.compute_weights(third.state, CONTEXT, round_with_silent(4, HONEST))
    assert frozen.aggregation_weights == pytest.approx(third.client_weights)
    later = rule.compute_weights(frozen.state, CONTEXT, round_with_silent(5, HONEST))
    assert later.aggregation_weights == pytest.approx(third.client_weights)


def test_a_client_that_was_not_requested_keeps_its_weight() -> None:
    rule = Celm(evidence="calibrated", warmup=3)
    first = rule.compute_weights(rule.init(CONTEXT), CONTEXT, round_with_silent(1, HONEST))
    later = rule.compute_weights(first.state, CONTEXT, round_with_silent(2, without("client-1")))
    assert later.client_weights["client-1"] == pytest.approx(first.client_weights["client-1"])
    unknown = rule.compute_weights(rule.init(CONTEXT), CONTEXT, round_with_silent(1, without("client-1")))
    assert unknown.client_weights["client-1"] == pytest.approx(1 / 4)


def test_a_client_that_was_silent_in_the_whole_warm_up_contributes_nothing_later() -> None:
    rule = Celm(evidence="calibrated", warmup=1)
    first = rule.compute_weights(
        rule.init(CONTEXT), CONTEXT, round_with_silent(1, without("client-1"), "client-1")
    )
    state = first.state
    for number in (2, 3):
        later = rule.compute_weights(state, CONTEXT, round_with_silent(number, HONEST))
        state = later.state
        assert later.contributions is not None
        assert later.contributions["client-1"] == 0
        assert sum(later.contributions.values()) == pytest.approx(1)


def test_with_the_papers_evidence_a_silent_client_keeps_its_weight() -> None:
    rule = Celm(warmup=3)
    result = rule.compute_weights(
        rule.init(CONTEXT), CONTEXT, round_with_silent(1, without("client-1"), "client-1")
    )
    assert result.client_weights["client-1"] == pytest.approx(1 / 4)


def test_a_client_that_trained_without_evidence_is_named() -> None:
    weak = scaled(trained(1), 0.05)
    result = Celm(evidence="calibrated", warmup=3).compute_weights(
        CelmState(ClientWeights(FROZEN)), CONTEXT, round_with_silent(1, {**HONEST, "client-1": weak})
    )
    assert result.scores["client-1"] == 0
    assert result.diagnostics["idle"] == []
    assert "client-1" in result.diagnostics["no_evidence"]
    assert "client-0" not in result.diagnostics["no_evidence"]


def test_a_client_without_evidence_in_one_round_has_weight_again_after_the_next() -> None:
    rule = Celm(evidence="calibrated", warmup=3)
    weak = {**HONEST, "client-1": scaled(trained(1), 0.05)}
    first = rule.compute_weights(rule.init(CONTEXT), CONTEXT, round_with_silent(1, weak))
    assert first.client_weights["client-1"] == 0
    second = rule.compute_weights(first.state, CONTEXT, round_with_silent(2, HONEST))
    assert second.client_weights["client-1"] > 0.05


def test_a_client_that_cannot_be_compared_stays_as_it_was_judged() -> None:
    rule = Celm(idle_check="on-drift")
    stopped = compute_weights(rule, 15, {**HONEST, "client-1": start()})
    alone = compute_weights(rule, 16, {"client-1": start()}, stopped.state)
    assert alone.diagnostics == {"idle": ["client-1"], "movement": {"client-1": None}}
    assert alone.client_weights["client-1"] == 0
    together = compute_weights(rule, 16, {"client-0": start(), "client-1": start()}, stopped.state)
    assert together.diagnostics["idle"] == ["client-1"]
    assert compute_weights(rule, 17, HONEST, alone.state).diagnostics["idle"] == []


def test_without_kept_inputs_the_first_check_probes_the_global_model() -> None:
    context = replace(CONTEXT, probe=ProbeSettings(steps=20, keep_inputs=False))
    rule = Celm(idle_check="on-drift")
    result = rule.compute_weights(
        CelmState(ClientWeights(FROZEN)), context, rule_rounds.a_round(start(), HONEST, 15)
    )
    probed = compute_weights(Celm(idle_check="every:10"), 15, HONEST).state.probe.global_inputs
    assert probed is not None
    assert result.state.probe.global_inputs is not None
    assert torch.equal(result.state.probe.global_inputs, probed)


def test_after_the_warm_up_only_inputs_for_idle_checks_are_kept() -> None:
    for rule, checks in ((Celm(warmup=1), False), (Celm(warmup=1, idle_check="on-drift"), True)):
        first = compute_weights(rule, 1, HONEST, rule.init(CONTEXT))
        assert set(first.state.probe.client_inputs) == set(NAMES)
        frozen = compute_weights(rule, 2, HONEST, first.state)
        assert frozen.state.probe.client_inputs == {}
        assert (frozen.state.probe.global_inputs is not None) == checks


def test_global_models_are_kept_as_long_as_they_are_needed() -> None:
    calibrated, again = Celm(evidence="calibrated"), Celm(idle_check="on-drift")
    assert len(compute_weights(calibrated, 2, HONEST).state.idle.history) == 1
    assert len(compute_weights(again, 6, HONEST).state.idle.history) == 1
    assert compute_weights(calibrated, 6, HONEST).state.idle.history == ()
    assert compute_weights(Celm(), 2, HONEST).state.idle.history == ()


def test_the_first_and_the_last_global_models_are_kept() -> None:
    rule, state = Celm(idle_check="every:10", global_history=3), CelmState(ClientWeights(FROZEN))
    for number in range(6, 12):
        shifted = {name: tensor + number for name, tensor in start().items()}
        state = rule.compute_weights(state, CONTEXT, rule_rounds.a_round(shifted, HONEST, number)).state
    bias = start()["2.bias"]
    assert [round((model["2.bias"] - bias).mean().item()) for model in state.idle.history] == [6, 10, 11]


def test_a_repeated_global_update_after_the_warm_up_is_idle() -> None:
    state = CelmState(ClientWeights(FROZEN), idle=IdleState((PAST,)), attendance=Attendance(ONCE, ONCE))
    result = compute_weights(Celm(idle_check="every:10"), 15, {**HONEST, "client-1": replayed(1)}, state)
    assert result.diagnostics["idle"] == ["client-1"]


@pytest.mark.parametrize("number", [6, 14, 16])
def test_between_checks_and_by_default_weights_are_frozen(number: int) -> None:
    models = {**HONEST, "client-1": start()}
    assert compute_weights(Celm(idle_check="every:10"), number, models).aggregation_weights == pytest.approx(
        FROZEN
    )
    assert compute_weights(Celm(), number, models).aggregation_weights == pytest.approx(FROZEN)
    assert compute_weights(Celm(), number, models).diagnostics == {}


def test_if_no_client_moved_none_is_idle() -> None:
    result = compute_weights(Celm(idle_check="on-drift"), 15, dict.fromkeys(NAMES, start()))
    assert result.aggregation_weights == pytest.approx(FROZEN)


@pytest.mark.parametrize("text", ["every:0", "every:", "sometimes", "on-drift "])
def test_an_unknown_idle_check_is_refused(text: str) -> None:
    with pytest.raises(CelmError, match=r"rule\.idle_check"):
        rules.build("celm", {"idle_check": text})
