"""Each reply is read by itself: what one node sends costs nobody else the round."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("flwr", reason="Flower is not installed: pip install 'celm[flower]'")

from flwr.app import Message, RecordDict

from celm.flower import ContributionStrategy
from celm.flower.message_exchange import send_and_receive
from support.small_grid import SmallGrid, initial, learner, network
from support.wire_grid import UnsetMetrics, wire_grid

UNREADABLE = 'its reply could not be fetched: "Flower cannot read it (AttributeError:'


def strategy(folder: Path | None = None, **settings: Any) -> ContributionStrategy:
    usual: dict[str, Any] = {"fraction_evaluate": 0.0, "retry_wait": 0.0, **settings}
    return ContributionStrategy("fedavg", network(), (6,), 3, folder=folder, **usual)


def unset_value(message: Message) -> Message:
    return Message(RecordDict({"arrays": message.content["arrays"], "m": UnsetMetrics()}), reply_to=message)


def test_flower_itself_raises_for_a_reply_with_an_unset_value() -> None:
    grid, _ = wire_grid({"a": learner(1.0), "bad": unset_value})
    messages = [Message(RecordDict({"arrays": initial()}), node_id, "train") for node_id in (1000, 1001)]
    with pytest.raises(AttributeError):
        grid.send_and_receive(messages, timeout=1)


def test_a_reply_that_cannot_be_read_costs_its_sender_the_round(tmp_path: Path) -> None:
    grid, link = wire_grid({"bad": unset_value, "a": learner(1.0), "b": learner(3.0)})
    result = strategy(tmp_path).start(grid, initial(), num_rounds=2)
    for record in result.records:
        assert set(record["weights"]) == {"a", "b"}
        assert record["excluded"]["bad"].startswith(UNREADABLE)
    assert len(link.pulled) == len(set(link.pulled)) == 6  # nothing is asked for twice
    # A server that comes back meets it again, and goes on.
    resumed, _ = wire_grid({"bad": unset_value, "a": learner(1.0), "b": learner(3.0)})
    assert len(strategy(tmp_path).start(resumed, initial(), num_rounds=2).records) == 2


def test_an_evaluation_that_cannot_be_read_is_left_out() -> None:
    def bad(message: Message) -> Any:
        if message.metadata.message_type == "train":
            return learner(1.0)(message)
        return Message(RecordDict({"m": UnsetMetrics()}), reply_to=message)

    grid, _ = wire_grid({"bad": bad, "a": learner(1.0), "b": learner(3.0)})
    result = strategy(fraction_evaluate=1.0).start(grid, initial(), num_rounds=1)
    assert dict(result.evaluate_metrics_clientapp[1]) == {"loss": 1.0}


def test_no_node_can_reply_in_the_name_of_another() -> None:
    victim: list[str] = []

    def imitator(message: Message) -> Any:
        reply = learner(9.0)(message)
        assert isinstance(reply, Message)
        reply.metadata.__dict__["_reply_to_message_id"] = victim[0]
        return reply

    grid, link = wire_grid({"bad": imitator, "a": learner(1.0), "b": learner(3.0)})

    original = link.PushMessages

    def push(request: Any) -> Any:
        ids = {
            link.name_of(proto.metadata.dst_node_id): proto.metadata.message_id
            for proto in request.messages_list
        }
        victim[:] = [ids["a"]]
        return original(request)

    link.PushMessages = push  # type: ignore[method-assign]
    record = strategy().start(grid, initial(), num_rounds=1).records[0]
    assert record["excluded"] == {"bad": "its reply could not be fetched: 'it answers another message'"}
    assert set(record["weights"]) == {"a", "b"}


def test_a_message_that_is_not_accepted_and_a_silent_node_are_named() -> None:
    grid, link = wire_grid(
        {"a": learner(1.0), "b": learner(3.0), "gone": learner(1.0), "mute": lambda _: None}
    )
    link.refused = {"gone"}
    started = time.monotonic()
    record = strategy().start(grid, initial(), num_rounds=1, timeout=0.2).records[0]
    assert time.monotonic() - started < 5
    assert record["excluded"] == {
        "gone": "its reply could not be fetched: 'the SuperLink did not accept its message'",
        "mute": "no reply in time",
    }


def test_a_lost_connection_is_nobodys_fault_and_ends_the_run_as_in_flower() -> None:
    def cut(message: Message) -> Any:
        link.connected = False
        return learner(1.0)(message)

    grid, link = wire_grid({"a": learner(1.0), "b": cut})
    with pytest.raises(ConnectionError):
        strategy().start(grid, initial(), num_rounds=1)


def test_a_reply_that_comes_later_is_waited_for() -> None:
    asked: list[int] = []

    def slow(message: Message) -> Any:
        asked.append(1)
        return learner(1.0)(message) if len(asked) == 3 else None

    grid, link = wire_grid({"a": learner(1.0), "slow": slow})
    assert strategy().start(grid, initial(), num_rounds=1).records[0]["excluded"] == {}
    assert len(link.pulled) == 4  # the reply that is there is not asked for again


@pytest.mark.parametrize("timeout", [None, 0.3])
def test_many_nodes_are_all_read_without_asking_all_of_them_in_every_pass(timeout: float | None) -> None:
    """Node k replies k ms after the start, and within 0.3 s at the latest: all of a hundred, with few empty pulls."""
    started = time.monotonic()

    def node(k: int) -> Any:
        def answer(message: Message) -> Message | None:
            late = time.monotonic() - started < 0.2 + k / 1000
            return None if late else Message(RecordDict(), reply_to=message)

        return answer

    grid, link = wire_grid({f"n{k}": node(k) for k in range(100)})
    messages = [Message(RecordDict(), number, "train") for number in link.ids.values()]
    started = time.monotonic()
    replies = send_and_receive(grid, messages, timeout)
    assert sorted(reply.metadata.src_node_id for reply in replies) == sorted(link.ids.values())
    # A pass every 10 ms that asks all would pull thousands of times.
    assert len(link.pulled) < 100 + 10 * (1 + (time.monotonic() - started) / 0.01) + 100


def test_a_grid_of_ones_own_is_called_as_it_is() -> None:
    """Wrappers that only have `send_and_receive`, and those that do more in it."""
    grid, link = wire_grid({"a": learner(1.0), "b": learner(3.0)})
    calls: list[float | None] = []

    class Proxy:
        def __getattr__(self, name: str) -> Any:
            if name in ("push_messages", "pull_messages"):
                raise NotImplementedError(name)
            return getattr(grid, name)

        def send_and_receive(self, messages: Any, *, timeout: float | None = None) -> Any:
            calls.append(timeout)
            return grid.send_and_receive(messages, timeout=timeout)

    proxy: Any = Proxy()
    strategy().start(proxy, initial(), num_rounds=1, timeout=7)
    strategy().start(SmallGrid({"a": learner(1.0), "b": learner(3.0)}), initial(), num_rounds=1)
    assert calls == [7]
    assert link.pulled


def test_no_messages_are_no_exchange() -> None:
    grid, link = wire_grid({})
    assert send_and_receive(grid, iter(()), timeout=1) == []
    assert link.pulled == []
