"""The server step on hand-made updates: exact numbers, refused merges, local heads."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import ClassVar

import pytest
import torch
from torch import Tensor

from celm.federation.server import (
    make_messages,
    step_record,
    validate_updates,
)
from celm.models.state_dict import StateDict
from celm.objectives.objective import ServerHook
from celm.rules.fedavg import FedAvg
from celm.rules.fednova import FedNova
from celm.rules.messages import ClientUpdate, RoundData
from celm.rules.robust.filter import Filter, FilterResult
from support.server_steps import make_server, model, step


def test_fedavg_weighs_by_reported_samples() -> None:
    server, state = make_server(rule=FedAvg())
    done = step(server, state, a=ClientUpdate(model(2.0), 1, 30), b=ClientUpdate(model(6.0), 1, 10))
    weights = done.result.aggregation_weights
    assert done.state.model["weight"].item() == pytest.approx(weights["a"] * 2.0 + weights["b"] * 6.0)
    assert math.fsum(weights.values()) == pytest.approx(1)
    assert done.state.round_number == 1
    assert done.clients == ("a", "b")
    assert state.model["weight"].item() == 1.0


def test_without_updates_the_model_stays_and_the_round_counts() -> None:
    server, state = make_server()
    done = step(server, state)
    assert done.result is None
    assert done.state.round_number == 1
    assert done.state.model is state.model
    assert done.state.rule is state.rule
    assert step_record(done) == {
        "weights": {},
        "client_weights": None,
        "scores": None,
        "evidence": None,
        "diagnostics": {},
        "earned": {},
        "flags": {},
        "clipped": {},
    }


class KeepNobody(Filter):
    def apply(self, round: RoundData) -> FilterResult:
        return FilterResult(replace(round, updates={}), dict.fromkeys(round.updates, "not trusted"))


def test_a_filter_that_leaves_nobody_is_named_and_changes_nothing() -> None:
    server, state = make_server(filter=KeepNobody())
    done = step(server, state, a=ClientUpdate(model(2.0), 1, 1))
    assert done.result is None
    assert done.excluded == {"a": "not trusted"}
    assert done.state.model is state.model


@dataclass(frozen=True)
class CountingHook(ServerHook[int]):
    """Counts the models it has seen."""

    state_type: ClassVar[type] = int

    def init(self, model: StateDict) -> int:
        return 0

    def update_state(self, state: int, round: RoundData, model: StateDict, clients: int) -> int:
        return state + 1


OVERFLOW = {
    "a": ClientUpdate(model(3e38), num_steps=1, num_examples=1000),
    "b": ClientUpdate(model(2.0), num_steps=1000, num_examples=1),
}


def test_a_merge_that_is_not_finite_is_refused_and_recorded() -> None:
    server, state = make_server(rule=FedNova(), hook=CountingHook())
    done = step(server, state, **OVERFLOW)
    assert "not finite" in done.rejected_merge
    assert "not finite" in step_record(done)["merge"]
    assert done.state.model is state.model
    assert done.state.hook == 0
    assert done.result is not None
    healthy = step(server, done.state, a=ClientUpdate(model(2.0), 1, 1), b=ClientUpdate(model(3.0), 1, 1))
    assert healthy.rejected_merge is None
    assert healthy.state.hook == 1


def test_clients_keep_their_heads_until_the_last_local_round() -> None:
    server, state = make_server(local_head_rounds=2)
    done = step(server, state, a=ClientUpdate(model(5.0, 7.0), 1, 1))
    messages = make_messages(server, done.state, ("a", "b"))
    assert messages["a"].model["weight"].item() == 5.0
    assert messages["a"].model["bias"].item() == 7.0
    assert messages["b"].model["weight"].item() == done.state.model["weight"].item()
    shared = step(server, done.state, a=ClientUpdate(model(9.0), 1, 1))
    assert shared.state.local_heads == {}


@pytest.mark.parametrize(
    ("update", "reason"),
    [
        (ClientUpdate(model(math.nan), 1, 1), "not finite"),
        (ClientUpdate({"weight": torch.zeros(1, 1)}, 1, 1), "bias"),
        (ClientUpdate(model(1.0), -1, 1), "-1 steps"),
        (ClientUpdate(model(1.0), 1, -5), "-5 samples"),
    ],
)
def test_an_unusable_update_is_excluded_with_its_reason(update: ClientUpdate, reason: str) -> None:
    good = ClientUpdate(model(2.0), 1, 1)
    usable, excluded = validate_updates({"bad": update, "good": good}, model(1.0))
    assert list(usable) == ["good"]
    assert reason in excluded["bad"]


def test_usable_updates_get_the_dtype_of_the_global_model() -> None:
    wide: dict[str, Tensor] = {name: tensor.double() for name, tensor in model(2.0).items()}
    usable, excluded = validate_updates({"a": ClientUpdate(wide, 1, 1)}, model(1.0))
    assert not excluded
    assert usable["a"].model["weight"].dtype == torch.float32


def test_observers_see_the_round_and_do_not_change_it() -> None:
    updates = {"a": ClientUpdate(model(2.0), 1, 3), "b": ClientUpdate(model(6.0), 1, 1)}
    alone, state = make_server()
    watched, watched_state = make_server(observers={"fednova": FedNova()})
    plain, seen = step(alone, state, **updates), step(watched, watched_state, **updates)
    assert torch.equal(plain.state.model["weight"], seen.state.model["weight"])
    assert set(step_record(seen)["observed"]) == {"fednova"}
    assert "observed" not in step_record(plain)
