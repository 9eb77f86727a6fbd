"""No single client sets a reported metric, and whoever is left out of a mean is named, in log and record."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("flwr", reason="Flower is not installed: pip install 'celm[flower]'")

from flwr.app import ArrayRecord, ConfigRecord, Error, Message, MetricRecord, RecordDict
from flwr.serverapp.strategy.strategy_utils import aggregate_metricrecords
from hypothesis import given, settings
from hypothesis import strategies as st

from celm.flower import ContributionStrategy
from celm.flower.metrics import aggregate_metrics
from celm.records.federation_files import read_federation
from support.small_grid import Client, SmallGrid, arrays_of, initial, network, reply
from support.state_folders import copy_older_folder

KEY = "num-examples"


def content(**metrics: Any) -> RecordDict:
    record = MetricRecord()
    for name, value in metrics.items():
        record._data[name.replace("_", "-")] = value  # what Flower itself would refuse may still arrive
    return RecordDict({"metrics": record})


def honest(**counts: float) -> dict[str, RecordDict]:
    return {
        name: content(accuracy=0.5, loss=0.7, num_examples=count) for name, count in (counts or FOUR).items()
    }


FOUR = {"a": 100, "b": 120, "c": 80, "d": 100}


@given(
    st.lists(st.tuples(st.integers(1, 1000), st.floats(0, 1), st.floats(-50, 50)), min_size=3, max_size=9),
)
@settings(max_examples=100, deadline=None)
def test_of_honest_clients_it_is_the_mean_of_flower(rows: list[tuple[int, float, float]]) -> None:
    contents = {
        str(i): content(accuracy=accuracy, losses=[loss, 1.0], num_examples=count)
        for i, (count, accuracy, loss) in enumerate(rows)
    }
    aggregated = aggregate_metrics(contents, KEY, None)
    assert aggregated.excluded == {}
    if max(count for count, _, _ in rows) <= sum(count for count, _, _ in rows) / 2:
        assert aggregated.capped == {}
        expected = aggregate_metricrecords(list(contents.values()), KEY)
        assert aggregated.values is not None
        assert aggregated.values["accuracy"] == pytest.approx(expected["accuracy"], rel=1e-12)
        assert aggregated.values["losses"] == pytest.approx(expected["losses"], rel=1e-12, abs=1e-12)


@pytest.mark.parametrize(
    ("lie", "reason"),
    [
        ({"num_examples": 1e300}, "reports '1e+300' as 'num-examples'"),
        ({"num_examples": 1e308}, "reports '1e+308' as 'num-examples'"),
        ({"num_examples": -1}, "reports '-1' as 'num-examples'"),
        ({"num_examples": float("nan")}, "reports 'nan' as 'num-examples'"),
        ({"num_examples": "many"}, "reports 'many' as 'num-examples'"),
        ({"num_examples": None}, "reports 'None' as 'num-examples'"),
        ({"num_examples": True}, "reports 'True' as 'num-examples'"),
        ({"num_examples": 2**53}, "reports '9007199254740992' as 'num-examples'"),
        ({"num_examples": 10**5000}, "reports a too large number as 'num-examples'"),
        ({"num_examples": [5]}, "reports a list as 'num-examples'"),
        ({"accuracy": "best"}, "reports 'best' as 'accuracy'"),
        ({"accuracy": None}, "reports 'None' as 'accuracy'"),
        ({"accuracy": float("inf")}, "reports 'inf' as 'accuracy'"),
        ({"accuracy": 7.0}, "reports 7 as 'accuracy', most clients 0 to 1"),
        ({"accuracy": -3.0}, "reports -3 as 'accuracy', most clients 0 to 1"),
        ({"loss": 1e300}, "reports 1e+300 as 'loss', over a million times the median"),
        ({"loss": [0.7]}, "'loss' has another length"),
        ({"praise": 1.0}, "reports 'praise', as most clients do not"),
        ({"\x1b[2J": 1.0}, "unusable metric name '\\x1b[2J'"),
    ],
)
@pytest.mark.parametrize("own_function", [False, True])
def test_a_client_that_lies_is_left_out_with_a_reason(
    lie: dict[str, Any], reason: str, own_function: bool
) -> None:
    liar = content(**{"accuracy": 0.99, "loss": 0.0, "num_examples": 100, **lie})
    aggregated = aggregate_metrics(
        {**honest(), "liar": liar}, KEY, aggregate_metricrecords if own_function else None
    )
    assert list(aggregated.excluded) == ["liar"]
    assert aggregated.excluded["liar"].startswith(reason)
    assert len(aggregated.excluded["liar"]) < 300
    assert aggregated.values is not None
    assert dict(aggregated.values) == pytest.approx({"accuracy": 0.5, "loss": 0.7})


@pytest.mark.parametrize("own_function", [False, True])
def test_no_client_has_more_than_half_of_the_weight(own_function: bool) -> None:
    liar = content(accuracy=1.0, loss=0.0, num_examples=2**52)
    aggregated = aggregate_metrics(
        {"liar": liar, **honest()}, KEY, aggregate_metricrecords if own_function else None
    )
    assert aggregated.excluded == {}
    assert aggregated.capped == {
        "liar": "'num-examples' is 4.5036e+15, counted as 400, the sum of all others"
    }
    assert aggregated.values is not None
    assert aggregated.values["accuracy"] == pytest.approx(0.75)
    assert liar["metrics"][KEY] == 2**52, "what the client sent is not changed"


def test_of_two_clients_the_larger_one_counts_as_it_says() -> None:
    contents = {"a": content(accuracy=1.0, num_examples=90), "b": content(accuracy=0.0, num_examples=10)}
    aggregated = aggregate_metrics(contents, KEY, None)
    assert aggregated.capped == {}
    assert aggregated.values is not None
    assert aggregated.values["accuracy"] == pytest.approx(0.9)


def test_without_a_majority_for_names_there_is_no_mean() -> None:
    contents = {
        "liar": content(accuracy=0.99, loss=0.0, praise=1.0, num_examples=100),
        "honest": content(accuracy=0.5, loss=0.7, num_examples=100),
    }
    for clients in (["liar", "honest"], ["honest", "liar"]):
        aggregated = aggregate_metrics({name: contents[name] for name in clients}, KEY, None)
        assert aggregated.values is None
        assert list(aggregated.excluded) == clients


def test_percent_and_clients_without_counts_are_fine() -> None:
    contents = {name: content(accuracy=value) for name, value in {"a": 40.0, "b": 60.0, "c": 80.0}.items()}
    aggregated = aggregate_metrics(contents, KEY, None)
    assert (aggregated.excluded, aggregated.capped) == ({}, {})
    assert aggregated.values is not None
    assert aggregated.values["accuracy"] == pytest.approx(60)


# --- in a federation ------------------------------------------------------------------------------------------


def member(judge: Callable[[Message], Message | list[Message] | None], **metrics: Any) -> Client:
    """Train honestly; reply to evaluations by `judge`."""

    def act(message: Message) -> Message | list[Message] | None:
        if message.metadata.message_type == "evaluate":
            return judge(message)
        arrays = ArrayRecord({name: tensor + 0.1 for name, tensor in arrays_of(message).items()})
        answer = reply(message, arrays, num_examples=10)
        for name, value in metrics.items():
            answer.content["metrics"][name] = value
        return answer

    return act


def says(**metrics: Any) -> Callable[[Message], Message]:
    return lambda message: Message(content(**metrics), reply_to=message)


def federation() -> dict[str, Client]:
    good = says(accuracy=0.5, num_examples=100)
    return {
        "north": member(good),
        "south": member(good),
        "west": member(says(accuracy=0.5, num_examples=50)),
        "liar": member(says(accuracy=0.99, num_examples=1e300)),
        "mute": member(says(accuracy=0.99, num_examples=None)),
        "gone": member(lambda message: None),
        "ill": member(lambda message: Message(Error(2, "out of\nmemory"), reply_to=message)),
        "keen": member(lambda message: [good(message), good(message)]),
    }


REASONS = {
    "liar": "reports '1e+300' as 'num-examples'",
    "mute": "reports 'None' as 'num-examples'",
    "gone": "no reply in time",
    "ill": "its app raised an error: 'out of\\nmemory'",
    "keen": "replied 2 times",
}


@pytest.fixture
def flower_log(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> Iterator[pytest.LogCaptureFixture]:
    flower = logging.getLogger("flwr")
    monkeypatch.setattr(flower, "propagate", False)  # pytest's handler of the root would see each line twice
    flower.addHandler(caplog.handler)
    yield caplog
    flower.removeHandler(caplog.handler)


def strategy(**options: Any) -> ContributionStrategy:
    return ContributionStrategy("fedavg", network(), (6,), 3, retry_wait=0.0, **options)


def warnings(log: pytest.LogCaptureFixture, words: str) -> list[str]:
    return [r.getMessage() for r in log.records if r.levelno == logging.WARNING and words in r.getMessage()]


def test_who_is_left_out_of_an_evaluation_is_in_record_and_log_once(
    tmp_path: Path, flower_log: pytest.LogCaptureFixture
) -> None:
    result = strategy(folder=tmp_path).start(SmallGrid(federation()), initial(), num_rounds=3)
    assert {number: dict(values) for number, values in result.evaluate_metrics_clientapp.items()} == {
        number: {"accuracy": pytest.approx(0.5)} for number in (1, 2, 3)
    }
    evaluations = read_federation(tmp_path).evaluations
    assert [line.round for line in evaluations] == [0, 1, 2, 3]
    assert [line.excluded for line in evaluations] == [{}, REASONS, REASONS, REASONS]
    for client, reason in REASONS.items():
        assert warnings(flower_log, f"{client}: {reason}") == [
            f"\t> left out of the evaluation metrics: {client}: {reason}"
        ]


def test_a_client_with_a_boast_is_bounded_and_named(
    tmp_path: Path, flower_log: pytest.LogCaptureFixture
) -> None:
    clients = {**federation(), "liar": member(says(accuracy=1.0, num_examples=10**9))}
    result = strategy(folder=tmp_path).start(SmallGrid(clients), initial(), num_rounds=2)
    assert result.evaluate_metrics_clientapp[1]["accuracy"] == pytest.approx(0.75)
    line = read_federation(tmp_path).evaluations[1]
    assert line.capped == {"liar": "'num-examples' is 1e+09, counted as 250, the sum of all others"}
    assert len(warnings(flower_log, "bounded in the evaluation metrics: liar")) == 1


def test_the_train_metrics_have_the_same_guard(tmp_path: Path, flower_log: pytest.LogCaptureFixture) -> None:
    good = says(accuracy=0.5, num_examples=100)
    clients = {name: member(good, loss=1.0) for name in "abc"} | {"liar": member(good, loss=1e300)}
    result = strategy(folder=tmp_path, fraction_evaluate=0.0).start(
        SmallGrid(clients), initial(), num_rounds=2
    )
    assert dict(result.train_metrics_clientapp[2]) == pytest.approx({"loss": 1.0})
    reason = "reports 1e+300 as 'loss', over a million times the median"
    assert [line.metrics_excluded for line in read_federation(tmp_path).rounds] == [{"liar": reason}] * 2
    assert warnings(flower_log, "left out of the train metrics") == [
        f"\t> left out of the train metrics: liar: {reason}"
    ]


def test_own_loops_and_wrappers_name_nodes_if_clients_are_not_known(
    flower_log: pytest.LogCaptureFixture,
) -> None:
    grid = SmallGrid(federation())
    play = strategy()
    arrays = play.prepare(initial(), 1)
    own = [Message(RecordDict({"arrays": arrays}), node, "evaluate") for node in grid.ids.values()]
    values = play.aggregate_evaluate(1, grid.send_and_receive(own))
    assert values is not None
    assert dict(values) == pytest.approx({"accuracy": 0.5})
    assert play.evaluation.record(1)["excluded"][f"node {grid.ids['liar']}"] == REASONS["liar"]
    # A wrapper that makes other messages of those that the strategy made: the nodes are the same.
    made = play.configure_evaluate(1, arrays, ConfigRecord(), grid)
    copies = [Message(m.content, m.metadata.dst_node_id, "evaluate") for m in made]
    play.aggregate_evaluate(1, grid.send_and_receive(copies))
    assert play.evaluation.record(1)["excluded"] == REASONS


def test_a_reply_to_another_message_is_ignored() -> None:
    late: list[Message] = []

    def straggler(message: Message) -> list[Message]:
        late.append(says(accuracy=0.0, num_examples=1)(message))
        return late[-2:-1]

    grid = SmallGrid({**federation(), "late": member(straggler)})
    play = strategy()
    result = play.start(grid, initial(), num_rounds=2)
    assert play.evaluation.record(2)["excluded"]["late"] == "no reply in time"
    assert result.evaluate_metrics_clientapp[2]["accuracy"] == pytest.approx(0.5)


def test_lines_of_earlier_versions_are_read(tmp_path: Path) -> None:
    """A folder from before evaluations had a version, a chain and `excluded`."""
    folder = copy_older_folder(tmp_path)
    assert "schema_version" not in (folder / "evaluations.jsonl").read_text()
    evaluations = read_federation(folder).evaluations
    assert [line.round for line in evaluations] == [0, 1, 2]
    assert all(not line.excluded for line in evaluations)


def judged(
    values: list[float], killed_after: int | None = None
) -> Callable[[int, ArrayRecord], MetricRecord]:
    """An evaluation at the server with known results, after one of which the server is killed."""

    def evaluate(number: int, arrays: ArrayRecord) -> MetricRecord:
        if number == killed_after:
            raise KeyboardInterrupt
        return MetricRecord({"accuracy": values[number]})

    return evaluate


def test_a_collapse_is_logged_once_and_not_again_after_a_restart(
    tmp_path: Path, flower_log: pytest.LogCaptureFixture
) -> None:
    values = [0.3, 0.6, 0.8, 0.1, 0.1, 0.1]
    good = {name: member(says(loss=1.0, num_examples=1)) for name in "abc"}
    with pytest.raises(KeyboardInterrupt):
        strategy(folder=tmp_path).start(
            SmallGrid(good), initial(), num_rounds=5, evaluate_fn=judged(values, killed_after=4)
        )
    collapsed = "accuracy (evaluated by the server) collapsed in round 3: 0.1, after 0.8 in round 2"
    assert len(warnings(flower_log, collapsed)) == 1
    strategy(folder=tmp_path).start(SmallGrid(good), initial(), num_rounds=5, evaluate_fn=judged(values))
    assert len(warnings(flower_log, "collapsed")) == 1
