"""Idle clients of a round, and the global models that are kept to recognise them."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from celm.core.probe import ProbeResult, probe
from celm.rules.celm_parts.idle import IdleState, MovementMonitor, NoMonitor, movement_by_client
from celm.rules.messages import RoundData
from celm.rules.rule import ProbeSettings, ServerContext
from support.rule_rounds import a_round

CLASSES, FEATURES = 3, 5
CONTEXT = ServerContext(
    ("a",), CLASSES, (FEATURES,), 10, 3, nn.Linear(FEATURES, CLASSES), (), ProbeSettings(steps=10)
)
INPUTS = torch.randn(CLASSES, FEATURES, generator=torch.Generator().manual_seed(1))
State = dict[str, Tensor]


def model(seed: int, size: float = 1.0) -> State:
    draw = torch.Generator().manual_seed(seed)
    weight = size * torch.randn(CLASSES, FEATURES, generator=draw)
    return {"weight": weight, "bias": torch.zeros(CLASSES)}


GLOBAL = model(0)


def plus(state: State, update: State) -> State:
    return {name: tensor + update[name] for name, tensor in state.items()}


def round_with(idle: State) -> RoundData:
    trained = {f"client-{seed}": plus(GLOBAL, model(seed, 0.3)) for seed in (1, 3, 20)}
    return a_round(GLOBAL, {**trained, "client-2": idle}, 4)


def test_the_first_and_the_last_global_models_are_kept() -> None:
    state = IdleState()
    for number in range(1, 8):
        state = state.record({"weight": torch.tensor(number)}, limit=4)
        kept = [int(model["weight"]) for model in state.history]
        assert kept == (list(range(1, number + 1)) if number <= 4 else [1, number - 2, number - 1, number])


def test_with_limit_0_no_global_model_is_kept() -> None:
    assert IdleState((GLOBAL, GLOBAL), idle=("a",)).record(GLOBAL, limit=0) == IdleState(idle=("a",))


def test_a_client_that_was_not_measured_stays_as_it_was_judged() -> None:
    state = IdleState(idle=("client-1", "client-9", "client-10"))
    movement = torch.tensor([1.0, math.nan, 0.1, math.nan])
    updated = state.update(["client-1", "client-2", "client-3", "client-10"], movement)
    assert updated.idle == ("client-3", "client-9", "client-10")


def test_no_monitor_reports_nobody_and_measures_nothing() -> None:
    report = NoMonitor().detect(IdleState(), CONTEXT, round_with(GLOBAL), None)
    assert report.mask.tolist() == [False] * 4
    assert report.diagnostics == {}


def test_a_copy_of_the_received_model_is_idle() -> None:
    report = MovementMonitor().detect(IdleState(), CONTEXT, round_with(GLOBAL), INPUTS)
    assert report.mask.tolist() == [False, True, False, False]  # in client order: 1, 2, 3, 20
    assert report.diagnostics["idle"] == ["client-2"]
    assert list(report.diagnostics["movement"]) == ["client-1", "client-2", "client-3", "client-20"]
    assert report.diagnostics["movement"]["client-2"] == pytest.approx(0, abs=1e-6)


def test_a_repeated_global_update_is_idle_only_if_the_earlier_model_is_known() -> None:
    last_update = model(7, 0.3)
    earlier = {name: tensor - last_update[name] for name, tensor in GLOBAL.items()}
    round = round_with(plus(GLOBAL, last_update))
    monitor = MovementMonitor()
    assert not monitor.detect(IdleState(), CONTEXT, round, INPUTS).mask[1]
    assert monitor.detect(IdleState((earlier,)), CONTEXT, round, INPUTS).mask[1]


def test_without_inputs_the_global_model_is_probed() -> None:
    calls: list[ProbeResult] = []

    def counted_probe(*args: Any, **settings: Any) -> ProbeResult:
        calls.append(probe(*args, **settings))
        return calls[-1]

    context, round = replace(CONTEXT, probe_fn=counted_probe), round_with(GLOBAL)
    report = MovementMonitor().detect(IdleState(), context, round, None)
    assert [result.logits.shape for result in calls] == [(1, CLASSES)]
    expected = MovementMonitor().detect(IdleState(), context, round, calls[0].inputs[0])
    assert report.diagnostics == expected.diagnostics
    assert len(calls) == 1


def test_movement_that_cannot_be_compared_is_none() -> None:
    assert movement_by_client(["a", "b"], torch.tensor([0.5, math.nan])) == {"a": 0.5, "b": None}
