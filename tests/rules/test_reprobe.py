"""Who does not work: without evidence in a calibrated warm-up, without weight after the freeze."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from celm.base.errors import CelmError
from celm.method.weights import Weights
from celm.rules import rules
from celm.rules.celm import Celm, Evidence
from celm.rules.rule import Facts, ProbeSettings, Weighing
from rules import rounds

NAMES = ("client-0", "client-1", "client-2", "client-3")
FROZEN = {"client-0": 0.1, "client-1": 0.2, "client-2": 0.3, "client-3": 0.4}
ONCE = dict.fromkeys(NAMES, 1)
CLASSES, FEATURES = 3, 5
State = dict[str, Tensor]


def network() -> nn.Sequential:
    return nn.Sequential(nn.Linear(FEATURES, 16), nn.ReLU(), nn.Linear(16, CLASSES))


FACTS = Facts(NAMES, CLASSES, (FEATURES,), 100, 3, network(), ("2.weight", "2.bias"), ProbeSettings(steps=20))


def start() -> State:
    torch.manual_seed(0)
    return {name: tensor.clone() for name, tensor in network().state_dict().items()}


def trained(seed: int) -> State:
    """A few real steps on data of one's own."""
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


def weigh(
    rule: Celm, number: int, models: Mapping[str, State], state: Evidence | None = None
) -> Weighing[Evidence]:
    return rule.weigh(state or Evidence(Weights(FROZEN)), FACTS, rounds.a_round(start(), models, number))


HONEST = {name: trained(seed) for seed, name in enumerate(NAMES)}


@pytest.mark.parametrize("idler", [start(), scaled(start(), 10)])
@pytest.mark.parametrize("reprobe", ["every:10", "on-drift"])
def test_who_returns_what_was_sent_has_no_weight(reprobe: str, idler: State) -> None:
    found = weigh(Celm(reprobe=reprobe), 15, {**HONEST, "client-1": idler})
    assert found.weights == pytest.approx(
        {"client-0": 0.125, "client-1": 0, "client-2": 0.375, "client-3": 0.5}
    )
    assert found.standing == pytest.approx(found.weights)
    assert found.diagnostics["idle"] == ["client-1"]
    assert found.diagnostics["movement"]["client-1"] == pytest.approx(0, abs=1e-4)
    assert found.scores is None


def test_work_that_begins_again_is_seen_at_the_next_look() -> None:
    rule = Celm(reprobe="every:10")
    stopped = weigh(rule, 15, {**HONEST, "client-1": start()})
    between = weigh(rule, 16, HONEST, stopped.state)
    assert between.weights["client-1"] == 0
    assert between.diagnostics == {"idle": ["client-1"], "movement": {}}
    again = weigh(rule, 25, HONEST, between.state)
    assert again.weights == pytest.approx(FROZEN)
    assert again.diagnostics["idle"] == []


def test_who_is_absent_stays_as_last_seen() -> None:
    rule = Celm(reprobe="on-drift")
    stopped = weigh(rule, 15, {**HONEST, "client-1": start()})
    others = {name: model for name, model in HONEST.items() if name != "client-1"}
    absent = weigh(rule, 16, others, stopped.state)
    assert absent.standing["client-1"] == 0
    assert math.fsum(absent.weights.values()) == pytest.approx(1)


def replayed(factor: float) -> State:
    """What was sent, moved once more as the global model moved last."""
    return {name: tensor + factor * (tensor - PAST[name]) for name, tensor in start().items()}


PAST = {name: tensor - 0.1 * torch.sign(tensor) for name, tensor in start().items()}
"""The global model of the round before."""


@pytest.mark.parametrize("idler", [start(), scaled(start(), 10), replayed(3), scaled(replayed(1), 10)])
@pytest.mark.parametrize("keep", [True, False])
def test_in_a_calibrated_warm_up_who_does_not_work_is_as_good_as_absent(idler: State, keep: bool) -> None:
    facts = replace(FACTS, probe=ProbeSettings(steps=20, keep=keep))
    rule, before = (
        Celm(evidence="calibrated"),
        Evidence(Weights(FROZEN), past=(PAST,), asked=ONCE, answered=ONCE),
    )
    found = rule.weigh(before, facts, rounds.a_round(start(), {**HONEST, "client-1": idler}, 2))
    assert found.diagnostics["idle"] == ["client-1"]
    assert found.evidence["client-1"] == [0.0] * CLASSES
    assert found.weights["client-1"] == pytest.approx(0.5 * FROZEN["client-1"])
    others = {name: model for name, model in HONEST.items() if name != "client-1"}
    without = rule.weigh(before, facts, rounds.a_round(start(), others, 2))
    assert without.diagnostics["idle"] == []
    for name, row in without.evidence.items():
        assert found.evidence[name] == pytest.approx(row, abs=1e-4)


def test_who_never_works_has_no_weight_from_the_first_round_on() -> None:
    rule, state = Celm(evidence="calibrated", warmup=1), Celm(evidence="calibrated").init(FACTS)
    for number in (1, 2):
        found = weigh(rule, number, {**HONEST, "client-1": start()}, state)
        assert found.weights["client-1"] == 0
        state = found.state


def test_who_does_not_work_in_the_first_round_it_takes_part_in_keeps_nothing_of_equal_weights() -> None:
    rule = Celm(evidence="calibrated", warmup=4)
    others = {name: model for name, model in HONEST.items() if name != "client-1"}
    first = weigh(rule, 1, others, rule.init(FACTS))
    late = weigh(rule, 2, {**HONEST, "client-1": start()}, first.state)
    assert late.diagnostics["idle"] == ["client-1"]
    assert late.weights["client-1"] == late.standing["client-1"] == 0
    assert math.fsum(late.standing.values()) == pytest.approx(1)
    works = weigh(rule, 2, HONEST, first.state)
    # All of its own score; the others, scored before, keep a half of what they had.
    kept = {name: 0.5 * first.standing[name] + 0.5 * works.scores[name] for name in others}
    kept["client-1"] = works.scores["client-1"]
    total = math.fsum(kept.values())
    assert works.standing == pytest.approx({name: weight / total for name, weight in kept.items()})


def without(name: str) -> dict[str, State]:
    return {other: model for other, model in HONEST.items() if other != name}


def asking(number: int, models: Mapping[str, State], *silent: str) -> rounds.Round:
    """A round in which some were asked, too, and sent nothing usable."""
    round = rounds.a_round(start(), models, number)
    sent = next(iter(round.delivered.values()))
    return replace(round, delivered={**round.delivered, **dict.fromkeys(silent, sent)})


def test_silence_in_a_calibrated_warm_up_keeps_nothing_of_equal_weights() -> None:
    rule = Celm(evidence="calibrated", warmup=3)
    state = rule.init(FACTS)
    for number in (1, 2, 3):
        found = rule.weigh(state, FACTS, asking(number, without("client-1"), "client-1"))
        state = found.state
        assert found.standing["client-1"] == 0
        assert "client-1" not in found.scores
        assert math.fsum(found.weights.values()) == pytest.approx(1)
    back = rule.weigh(state, FACTS, asking(4, HONEST))
    assert back.weights["client-1"] == 0


def test_who_answers_in_one_round_of_three_has_a_third_of_its_part() -> None:
    rule = Celm(evidence="calibrated", warmup=3)
    first = rule.weigh(rule.init(FACTS), FACTS, asking(1, HONEST))
    second = rule.weigh(first.state, FACTS, asking(2, without("client-1"), "client-1"))
    third = rule.weigh(second.state, FACTS, asking(3, without("client-1"), "client-1"))
    had, has = first.standing["client-1"], third.standing["client-1"]
    assert had > 0.1
    assert has / (1 - has) == pytest.approx(had / (1 - had) / 3)
    frozen = rule.weigh(third.state, FACTS, asking(4, HONEST))
    assert frozen.weights == pytest.approx(third.standing)
    later = rule.weigh(frozen.state, FACTS, asking(5, HONEST))
    assert later.weights == pytest.approx(third.standing)


def test_who_was_not_asked_keeps_what_it_has() -> None:
    rule = Celm(evidence="calibrated", warmup=3)
    first = rule.weigh(rule.init(FACTS), FACTS, asking(1, HONEST))
    later = rule.weigh(first.state, FACTS, asking(2, without("client-1")))
    assert later.standing["client-1"] == pytest.approx(first.standing["client-1"])
    unknown = rule.weigh(rule.init(FACTS), FACTS, asking(1, without("client-1")))
    assert unknown.standing["client-1"] == pytest.approx(1 / 4)


def test_with_the_papers_evidence_who_is_silent_keeps_what_it_has() -> None:
    rule = Celm(warmup=3)
    found = rule.weigh(rule.init(FACTS), FACTS, asking(1, without("client-1"), "client-1"))
    assert found.standing["client-1"] == pytest.approx(1 / 4)


def test_who_moved_but_has_no_evidence_is_named() -> None:
    quiet = scaled(trained(1), 0.05)
    found = Celm(evidence="calibrated", warmup=3).weigh(
        Evidence(Weights(FROZEN)), FACTS, asking(1, {**HONEST, "client-1": quiet})
    )
    assert found.scores["client-1"] == 0
    assert found.diagnostics["idle"] == []
    assert "client-1" in found.diagnostics["faint"]
    assert "client-0" not in found.diagnostics["faint"]


def test_who_is_alone_or_among_idlers_stays_as_it_was_judged() -> None:
    rule = Celm(reprobe="on-drift")
    stopped = weigh(rule, 15, {**HONEST, "client-1": start()})
    alone = weigh(rule, 16, {"client-1": start()}, stopped.state)
    assert alone.diagnostics == {"idle": ["client-1"], "movement": {"client-1": None}}
    assert alone.standing["client-1"] == 0
    together = weigh(rule, 16, {"client-0": start(), "client-1": start()}, stopped.state)
    assert together.diagnostics["idle"] == ["client-1"]
    assert weigh(rule, 17, HONEST, alone.state).diagnostics["idle"] == []


def test_without_kept_inputs_the_first_look_probes_the_global_model() -> None:
    facts = replace(FACTS, probe=ProbeSettings(steps=20, keep=False))
    rule = Celm(reprobe="on-drift")
    found = rule.weigh(Evidence(Weights(FROZEN)), facts, rounds.a_round(start(), HONEST, 15))
    probed = weigh(Celm(reprobe="every:10"), 15, HONEST).state.global_inputs
    assert probed is not None
    assert found.state.global_inputs is not None
    assert torch.equal(found.state.global_inputs, probed)


def test_what_is_no_longer_needed_is_forgotten_at_the_freeze() -> None:
    for rule, looks in ((Celm(warmup=1), False), (Celm(warmup=1, reprobe="on-drift"), True)):
        first = weigh(rule, 1, HONEST, rule.init(FACTS))
        assert set(first.state.inputs) == set(NAMES)
        frozen = weigh(rule, 2, HONEST, first.state)
        assert frozen.state.inputs == {}
        assert (frozen.state.global_inputs is not None) == looks


def test_global_models_are_kept_as_long_as_they_are_needed() -> None:
    calibrated, again = Celm(evidence="calibrated"), Celm(reprobe="on-drift")
    assert len(weigh(calibrated, 2, HONEST).state.past) == 1
    assert len(weigh(again, 6, HONEST).state.past) == 1
    assert weigh(calibrated, 6, HONEST).state.past == ()
    assert weigh(Celm(), 2, HONEST).state.past == ()


def test_of_the_global_models_the_first_and_the_last_are_kept() -> None:
    rule, state = Celm(reprobe="every:10", remember=3), Evidence(Weights(FROZEN))
    for number in range(6, 12):
        here = {name: tensor + number for name, tensor in start().items()}
        state = rule.weigh(state, FACTS, rounds.a_round(here, HONEST, number)).state
    bias = start()["2.bias"]
    assert [round((model["2.bias"] - bias).mean().item()) for model in state.past] == [6, 10, 11]


def test_a_replay_after_the_freeze_is_no_work() -> None:
    state = Evidence(Weights(FROZEN), past=(PAST,), asked=ONCE, answered=ONCE)
    found = weigh(Celm(reprobe="every:10"), 15, {**HONEST, "client-1": replayed(1)}, state)
    assert found.diagnostics["idle"] == ["client-1"]


@pytest.mark.parametrize("number", [6, 14, 16])
def test_between_looks_and_by_default_weights_are_frozen(number: int) -> None:
    models = {**HONEST, "client-1": start()}
    assert weigh(Celm(reprobe="every:10"), number, models).weights == pytest.approx(FROZEN)
    assert weigh(Celm(), number, models).weights == pytest.approx(FROZEN)
    assert weigh(Celm(), number, models).diagnostics == {}


def test_all_idle_is_nobody_idle() -> None:
    found = weigh(Celm(reprobe="on-drift"), 15, dict.fromkeys(NAMES, start()))
    assert found.weights == pytest.approx(FROZEN)


@pytest.mark.parametrize("text", ["every:0", "every:", "sometimes", "on-drift "])
def test_what_cannot_be_read_is_refused(text: str) -> None:
    with pytest.raises(CelmError, match=r"rule\.reprobe"):
        rules.build("celm", {"reprobe": text})
