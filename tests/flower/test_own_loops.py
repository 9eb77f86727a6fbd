"""Loops that are not `start`: Flower's wrappers for differential privacy, a user's own, and the legacy API."""

from __future__ import annotations

import gc
import json
import logging
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("flwr", reason="Flower is not installed: pip install 'celm[flower]'")

import torch
from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.server import Server, SimpleClientManager
from flwr.serverapp import Grid
from flwr.serverapp.strategy import (
    DifferentialPrivacyClientSideAdaptiveClipping,
    DifferentialPrivacyClientSideFixedClipping,
    DifferentialPrivacyServerSideAdaptiveClipping,
    DifferentialPrivacyServerSideFixedClipping,
    Strategy,
)

from celm.base.errors import CelmError
from celm.flower import CelmStrategy, ContributionStrategy
from celm.live.round_record import verify_chain
from celm.records.federation_files import read_federation
from celm.report.build import build_report
from support.small_grid import Client, SmallGrid, arrays_of, config_of, initial, learner, network, reply


def celm(folder: Path | None = None, **settings: Any) -> CelmStrategy:
    usual: dict[str, Any] = {"fraction_evaluate": 0.0, "probe": {"steps": 3}, "rule_options": {"warmup": 2}}
    return CelmStrategy(network(), (6,), 3, folder=folder, **{**usual, **settings})


def fedavg(folder: Path | None = None, **settings: Any) -> ContributionStrategy:
    return ContributionStrategy(
        "fedavg", network(), (6,), 3, folder=folder, fraction_evaluate=0.0, **settings
    )


def clients() -> dict[str, Client]:
    return {"a": learner(0.1), "b": learner(-0.2), "c": learner(0.3)}


def clipping(message: Message) -> Message:
    """A client with Flower's adaptive clipping at the client, which reports whether it clipped."""
    assert any("clipping" in key for key in config_of(message))
    moved = {name: tensor + 0.01 for name, tensor in arrays_of(message).items()}
    metrics = MetricRecord({"num-examples": 1, "norm_bit": 0})
    return Message(RecordDict({"arrays": ArrayRecord(moved), "metrics": metrics}), reply_to=message)


def norm_of(update: dict[str, torch.Tensor], base: dict[str, torch.Tensor]) -> float:
    return float(sum(((update[name] - base[name]) ** 2).sum() for name in base) ** 0.5)


def test_server_side_clipping_and_noise_work_on_what_clients_send() -> None:
    inner = fedavg()
    wrapper = DifferentialPrivacyServerSideFixedClipping(inner, 0.0, clipping_norm=0.5, num_sampled_clients=3)
    result = wrapper.start(SmallGrid({"a": learner(1.0), "b": learner(1.0), "c": learner(1.0)}), initial(), 2)
    assert [record["round"] for record in result_records(inner)] == [1, 2]
    # Every update is clipped to 0.5, and all are the same: two rounds move the model by 1.
    before = initial().to_torch_state_dict()
    assert norm_of(result.arrays.to_torch_state_dict(), before) == pytest.approx(1.0, rel=1e-4)


def result_records(strategy: ContributionStrategy) -> list[dict[str, Any]]:
    return strategy.state_store.records


@pytest.mark.parametrize(
    "wrap",
    [
        lambda inner: DifferentialPrivacyServerSideFixedClipping(inner, 0.1, 0.5, 3),
        lambda inner: DifferentialPrivacyServerSideAdaptiveClipping(inner, 0.1, 3),
        lambda inner: DifferentialPrivacyClientSideFixedClipping(inner, 0.1, 0.5, 3),
        lambda inner: DifferentialPrivacyClientSideAdaptiveClipping(inner, 0.1, 3),
    ],
    ids=["server-fixed", "server-adaptive", "client-fixed", "client-adaptive"],
)
def test_celm_works_under_flowers_wrappers_for_differential_privacy(wrap: Any, tmp_path: Path) -> None:
    inner = celm(tmp_path)
    wrapper: Strategy = wrap(inner)
    by_client = "ClientSide" in type(wrapper).__name__
    members: dict[str, Client] = dict.fromkeys("abc", clipping) if by_client else clients()
    grid = SmallGrid(members)
    result = wrapper.start(grid, initial(), num_rounds=3)
    records = verify_chain(tmp_path / "rounds.jsonl")
    assert [record["round"] for record in records] == [1, 2, 3]
    assert all(sum(record["weights"].values()) == pytest.approx(1) for record in records)
    assert records[0]["evidence"] is not None
    assert sorted(inner.contributions[3]) == ["a", "b", "c"]
    # Clients train on the noised model, and the record says so.
    assert records[1]["start"] != records[0]["model"]
    assert all(torch.from_numpy(array.numpy()).isfinite().all() for array in result.arrays.values())
    assert "round 3" in build_report(tmp_path)


class Rebuilding(Strategy):
    """A wrapper that sends messages of its own and passes on replies of its own."""

    def __init__(self, inner: ContributionStrategy) -> None:
        self.inner = inner

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        messages = self.inner.configure_train(server_round, arrays, config, grid)
        return [Message(message.content, message.metadata.dst_node_id, "train") for message in messages]

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        return self.inner.aggregate_train(server_round, list(replies))

    def configure_evaluate(self, *_: Any) -> Iterable[Message]:
        return []

    def aggregate_evaluate(self, *_: Any) -> None: ...

    def summary(self) -> None:
        self.inner.summary()


def test_a_wrapper_may_send_its_own_messages() -> None:
    direct, inner = fedavg(), fedavg()
    expected = direct.start(SmallGrid(clients()), initial(), 2)
    result = Rebuilding(inner).start(SmallGrid(clients()), initial(), 2)
    assert [record["excluded"] for record in result_records(inner)] == [{}, {}]
    for name, array in expected.arrays.items():
        assert (result.arrays[name].numpy() == array.numpy()).all()


def test_the_weights_are_those_of_start_without_any_call_to_prepare() -> None:
    expected = celm().start(SmallGrid(clients()), initial(), 3)
    grid, loop, arrays = SmallGrid(clients()), celm(), initial()
    for number in (1, 2, 3):
        messages = loop.configure_train(number, arrays, ConfigRecord(), grid)
        merged, _ = loop.aggregate_train(number, grid.send_and_receive(messages))
        assert merged is not None
        arrays = merged
    assert loop.contributions == expected.contributions


def test_the_number_of_rounds_is_asked_for_if_the_rule_needs_it() -> None:
    grid = SmallGrid(clients())
    with pytest.raises(CelmError, match="number of rounds") as refused:
        celm(rule_options={}).configure_train(1, initial(), ConfigRecord(), grid)
    assert "num_rounds=" in str(refused.value.hint)
    known = celm(rule_options={}, num_rounds=40)
    known.configure_train(1, initial(), ConfigRecord(), grid)
    assert known.live_server.server.local_head_rounds == 5  # the floor of trust
    validation = (torch.randn(9, 6), torch.arange(9) % 3)
    decaying = ContributionStrategy(
        "cffl", network(), (6,), 3, rule_options={"decay": True}, validation=validation
    )
    with pytest.raises(CelmError, match="number of rounds"):
        decaying.configure_train(1, initial(), ConfigRecord(), grid)
    # What `start` is told counts there.
    assert len(celm(num_rounds=9).start(SmallGrid(clients()), initial(), 2).records) == 2


def test_a_loop_of_ones_own_holds_the_folder_and_can_be_resumed(tmp_path: Path) -> None:
    def play(loop: CelmStrategy, grid: SmallGrid, last: int) -> None:
        arrays = loop.prepare(initial(), 4)
        for number in range(loop.rounds_done + 1, last + 1):
            messages = loop.configure_train(number, arrays, ConfigRecord(), grid)
            merged, _ = loop.aggregate_train(number, grid.send_and_receive(messages))
            assert merged is not None
            arrays = merged

    first = celm(tmp_path)
    play(first, SmallGrid(clients()), 2)
    with pytest.raises(CelmError, match="in use by another process"):
        celm(tmp_path).configure_train(1, initial(), ConfigRecord(), SmallGrid(clients()))
    first.close()
    second = celm(tmp_path)
    play(second, SmallGrid(clients()), 4)
    assert second.contributions == celm().start(SmallGrid(clients()), initial(), 4).contributions
    del second
    gc.collect()  # a strategy that is deleted holds nothing
    assert len(celm(tmp_path).start(SmallGrid({}), initial(), 4).records) == 4


def test_a_wrapper_that_starts_again_is_told_that_its_rounds_are_done(tmp_path: Path) -> None:
    DifferentialPrivacyServerSideFixedClipping(fedavg(tmp_path), 0.1, 0.5, 3).start(
        SmallGrid(clients()), initial(), 2
    )
    gc.collect()
    again = DifferentialPrivacyServerSideFixedClipping(fedavg(tmp_path), 0.1, 0.5, 3)
    with pytest.raises(CelmError, match="round 1 is finished already") as refused:
        again.start(SmallGrid(clients()), initial(), 2)
    assert "round 3 is next" in str(refused.value)
    # Without a folder there is nothing to go on with: it is a new federation.
    free = fedavg()
    for _ in range(2):
        free_wrapper = DifferentialPrivacyServerSideFixedClipping(free, 0.1, 0.5, 3)
        free_wrapper.start(SmallGrid(clients()), initial(), 2)
        assert [record["round"] for record in result_records(free)] == [1, 2]


def test_a_round_that_fails_in_a_wrappers_loop_is_noted_and_the_next_goes_on(tmp_path: Path) -> None:
    failures = iter([False, True, False])
    mute = {"a": lambda m: None if next(failures) else learner(0.1)(m), "b": learner(0.2)}
    inner = fedavg(tmp_path)
    Rebuilding(inner).start(SmallGrid(mute), initial(), 3)
    assert [record["round"] for record in result_records(inner)] == [1, 2]
    (line,) = (tmp_path / "failures.jsonl").read_text().splitlines()
    assert json.loads(line)["excluded"] == {"a": "no reply in time"}


def evaluated(accuracies: list[float]) -> Client:
    """A client that reports these accuracies, one for each evaluation."""
    reported = iter(accuracies)

    def act(message: Message) -> Any:
        if message.metadata.message_type != "evaluate":
            return learner(0.1, num_examples=1)(message)
        metrics = MetricRecord({"accuracy": next(reported), "num-examples": 1})
        return Message(RecordDict({"metrics": metrics}), reply_to=message)

    return act


def evaluating(folder: Path) -> ContributionStrategy:
    return ContributionStrategy("fedavg", network(), (6,), 3, folder=folder, preset=None)


def test_a_wrappers_loop_saves_evaluations_and_warns_of_a_collapse(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logging.getLogger("flwr"), "propagate", True)
    curve = [0.6, 0.8, 0.9, 0.3]

    def members() -> dict[str, Client]:
        return {name: evaluated(curve) for name in "abc"}

    saved = []
    for way in ("start", "wrapper"):
        caplog.clear()
        inner: Strategy = evaluating(tmp_path / way)
        strategy = inner if way == "start" else DifferentialPrivacyServerSideFixedClipping(inner, 0.0, 9.0, 3)
        strategy.start(SmallGrid(members()), initial(), num_rounds=4)
        lines = read_federation(tmp_path / way).evaluations
        saved.append([(line.round, line.clients) for line in lines if line.round])
        alarms = [line.getMessage() for line in caplog.records if "collapsed in round 4" in line.getMessage()]
        assert len(alarms) == 1, way
    assert saved[0] == saved[1] == [(i, {"accuracy": pytest.approx(v)}) for i, v in enumerate(curve, 1)]
    assert "collapsed in round 4" in build_report(tmp_path / "wrapper")


def test_an_evaluation_has_the_round_of_the_record_and_is_saved_once(tmp_path: Path) -> None:
    """Round 2 of the loop fails: the model of round 1 is evaluated again, and round 3 is the second of the record."""
    grid = SmallGrid({name: evaluated([0.5, 0.6, 0.7]) for name in "ab"})
    loop, arrays = evaluating(tmp_path), initial()
    for number in (1, 2, 3):
        messages = list(loop.configure_train(number, arrays, ConfigRecord(), grid))
        replies = grid.send_and_receive(messages)
        merged, _ = loop.aggregate_train(number, [] if number == 2 else replies)
        arrays = merged or arrays
        asked = loop.configure_evaluate(number, arrays, ConfigRecord(), grid)
        values = loop.aggregate_evaluate(number, grid.send_and_receive(asked))
        assert values is not None
    lines = read_federation(tmp_path).evaluations
    assert [(line.round, line.clients) for line in lines] == [(1, {"accuracy": 0.5}), (2, {"accuracy": 0.7})]


def test_the_legacy_api_gets_one_clear_sentence() -> None:
    server = Server(client_manager=SimpleClientManager(), strategy=celm())  # type: ignore[arg-type]
    with pytest.raises(CelmError, match="legacy API") as refused:
        server.fit(num_rounds=1, timeout=None)
    assert "strategy.start(grid" in str(refused.value.hint)


def test_replies_are_needed_from_a_round_that_was_configured() -> None:
    grid = SmallGrid(clients())
    loop = celm()
    loop.configure_train(1, initial(), ConfigRecord(), grid)
    with pytest.raises(CelmError, match="round 2 was not configured"):
        loop.aggregate_train(2, [])
    stray = Message(RecordDict(), 1, "train")
    late = [reply(stray, initial())]
    assert loop.aggregate_train(1, late) == (None, None)
