"""What clients earn, by hand: absence, exclusion and idleness, and who never delivered."""

from __future__ import annotations

import math
from typing import Any, ClassVar

import pytest
from hypothesis import given
from hypothesis import strategies as st

from celm.federation.earnings import Earnings, without_undelivered
from celm.federation.server import initial_server_state, make_messages, server_step, step_record
from celm.rules.fedavg import FedAvg
from celm.rules.fednova import FedNova
from celm.rules.messages import ClientUpdate, RoundData
from celm.rules.rule import AnyRule, Rule, ServerContext, WeightingResult
from support.server_steps import make_server, model, step

NAMES = ("a", "b", "c")


class FixedWeights(Rule[None]):
    """Gives every client, delivered or not, a third, as CELM does before it has evidence."""

    state_type: ClassVar[type] = type(None)

    def init(self, context: ServerContext) -> None:
        return None

    def compute_weights(self, state: None, context: ServerContext, round: RoundData) -> WeightingResult[None]:
        present = {name: 1 / len(round.clients) for name in round.clients}
        return WeightingResult(None, present, dict.fromkeys(NAMES, 1 / 3))


@pytest.mark.parametrize("rule", [FedAvg(), FedNova(), FixedWeights()])
def test_a_client_that_never_delivered_has_no_weight_and_earns_nothing(rule: AnyRule) -> None:
    server, _ = make_server(rule=rule)
    state = initial_server_state(server, model(1.0), NAMES)
    for weight in (2.0, 3.0):
        messages = make_messages(server, state, NAMES)
        updates = {name: ClientUpdate(model(weight), 1, 10) for name in ("a", "b")}
        done = server_step(server, state, messages, updates, invalid={"c": "NaN in weight"})
        state = done.state
    record = step_record(done)
    assert record["client_weights"].get("c", 0.0) == 0.0
    assert record["earned"] == {"a": 0.5, "b": 0.5, "c": 0.0}
    assert record["flags"] == {"c": {"excluded": "NaN in weight"}}


def test_earned_is_the_mean_over_all_rounds_of_delivered_contributions() -> None:
    earnings = Earnings()
    earnings = earnings.record({"a": 0.75, "b": 0.25}, delivered=["a", "b"])
    earnings = earnings.record({"a": 0.75, "b": 0.25}, delivered=["a"])
    earnings = earnings.record({}, delivered=())  # no usable update at all
    earnings = earnings.record({"a": 0.25, "b": 0.75}, delivered=["a", "b"], unpaid=["a"])
    assert earnings.earned == {"a": (0.75 + 0.75) / 4, "b": (0.25 + 0.75) / 4}


def test_an_upload_equal_to_the_message_is_flagged_and_not_paid() -> None:
    server, state = make_server()
    done = step(server, state, a=ClientUpdate(model(1.0), 1, 10), b=ClientUpdate(model(6.0), 1, 10))
    record = step_record(done)
    assert list(record["flags"]) == ["a"]
    assert list(record["flags"]["a"]) == ["unchanged"]
    assert record["earned"] == {"a": 0.0, "b": 0.5}


def test_with_local_heads_the_message_counts_and_not_the_global_model() -> None:
    """A client that returns its own head on the global backbone returned what it was sent."""
    server, state = make_server(local_head_rounds=3)
    first = step(server, state, a=ClientUpdate(model(2.0), 1, 10), b=ClientUpdate(model(6.0), 1, 10)).state
    sent = make_messages(server, first, ("a", "b"))["a"].model
    assert sent["weight"].item() == 2.0 != first.model["weight"].item()
    updates: dict[str, Any] = {"a": ClientUpdate(dict(sent), 1, 10), "b": ClientUpdate(model(7.0), 1, 10)}
    assert list(step(server, first, **updates).flags) == ["a"]


@given(
    st.lists(
        st.tuples(
            st.lists(st.floats(0, 1), min_size=3, max_size=3),
            st.sets(st.sampled_from(NAMES)),
            st.sets(st.sampled_from(NAMES)),
        ),
        min_size=1,
        max_size=6,
    )
)
def test_nobody_earns_more_than_there_is_and_only_deliverers_earn(rounds: Any) -> None:
    earnings, ever_delivered = Earnings(), set()
    for weights, delivered, unpaid in rounds:
        total = math.fsum(weights) or 1.0
        shares = {name: weight / total for name, weight in zip(NAMES, weights, strict=True)}
        earnings = earnings.record(shares, delivered, unpaid)
        ever_delivered |= delivered
    assert math.fsum(earnings.earned.values()) <= 1 + 1e-9
    assert {name for name, value in earnings.earned.items() if value > 0} <= ever_delivered
    assert earnings.delivered == tuple(sorted(ever_delivered))


def test_weights_stay_to_the_last_bit_if_everybody_delivered() -> None:
    weights = {"a": 0.1, "b": 0.2, "c": 0.7000000000000001}
    assert without_undelivered(weights, NAMES) == weights


def test_if_only_weightless_clients_delivered_they_share_equally() -> None:
    assert without_undelivered({"a": 0.0, "b": 1.0}, ["a"]) == {"a": 1.0, "b": 0.0}
    assert sum(without_undelivered({"a": 0.2, "b": 0.8}, []).values()) == pytest.approx(0)
