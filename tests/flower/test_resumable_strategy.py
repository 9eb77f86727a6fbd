"""A federation over its rounds: local heads, absence, retries, bounds on waiting, kills and resumption."""

from __future__ import annotations

import hashlib
import itertools
import json
import logging
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("flwr", reason="Flower is not installed: pip install 'celm[flower]'")

import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MetricRecord
from torch import nn

from celm.base.errors import CelmError
from celm.flower import CelmStrategy, ContributionResult, ContributionStrategy
from celm.live.round_record import check_chain, verify_chain
from celm.records.federation_files import read_state_folder
from celm.report.build import build_report
from support.small_grid import Client, SmallGrid, arrays_of, initial, learner, network, reply

HEAD = ("3.weight", "3.bias")


def strategy(folder: Path | None = None, warmup: int = 3, **settings: Any) -> CelmStrategy:
    usual: dict[str, Any] = {
        "fraction_evaluate": 0.0,
        "retry_wait": 0.0,
        "probe": {"steps": 3},
        "preset": None,
    }
    usual["rule_options"] = {"warmup": warmup}
    return CelmStrategy(network(), (6,), 3, folder=folder, **{**usual, **settings})


def clients() -> dict[str, Client]:
    return {"a": learner(0.1, num_examples=3), "b": learner(-0.2), "c": learner(0.3, loss=1.0)}


def same(one: ContributionResult, other: ContributionResult) -> bool:
    arrays = zip(one.arrays.items(), other.arrays.items(), strict=True)
    return one.contributions == other.contributions and all(a == b for a, b in arrays)


def test_while_it_warms_up_each_node_gets_the_global_backbone_and_its_own_last_head() -> None:
    grid = SmallGrid(clients())
    returned: dict[int, dict[str, dict[str, torch.Tensor]]] = {}
    for name, client in list(grid.clients.items()):

        def remember(message: Message, name: str = name, client: Client = client) -> Message:
            made = client(message)
            assert isinstance(made, Message)
            number = message.content["config"]["server-round"]
            returned.setdefault(number, {})[name] = arrays_of(made)
            return made

        grid.clients[name] = remember
    names = {number: name for name, number in grid.ids.items()}
    result = strategy(warmup=2).start(grid, initial(), num_rounds=3)
    sent: dict[int, dict[str, dict[str, torch.Tensor]]] = {}
    for message in grid.sent:
        number = int(message.content["config"]["server-round"])
        sent.setdefault(number, {})[names[message.metadata.dst_node_id]] = arrays_of(message)
    first = initial().to_torch_state_dict()
    for name in grid.clients:
        for key, tensor in first.items():
            assert torch.equal(sent[1][name][key], tensor)
        for key in HEAD:
            assert torch.equal(sent[2][name][key], returned[1][name][key])
    weights = result.records[0]["weights"]
    for key in first:
        merged = sum(weights[name] * returned[1][name][key] for name in grid.clients)
        if key not in HEAD:
            torch.testing.assert_close(sent[2]["a"][key], merged)
            assert torch.equal(sent[2]["a"][key], sent[2]["b"][key])
        # Once the warm-up is over all get the same, head included.
        assert torch.equal(sent[3]["a"][key], sent[3]["b"][key])


def test_a_client_that_comes_back_finds_its_head_and_weight_and_the_record_shows_its_absence() -> None:
    grid = SmallGrid(clients())
    seen: list[dict[str, torch.Tensor]] = []

    def visitor(message: Message) -> Message:
        seen.append(arrays_of(message))
        return learner(0.5)(message)  # type: ignore[return-value]

    def host(message: Message) -> Message:
        away = message.content["config"]["server-round"] in (1, 2)
        grid.online = {"a", "b"} if away else {"a", "b", "c"}  # from the next round on
        return learner(0.1)(message)  # type: ignore[return-value]

    grid.clients |= {"a": host, "c": visitor}
    result = strategy(warmup=5).start(grid, initial(), num_rounds=5)
    assert [record["absent"] for record in result.records] == [[], ["c"], ["c"], [], []]
    assert [sorted(record["weights"]) for record in result.records][1] == ["a", "b"]
    assert result.contributions[3]["c"] == result.contributions[1]["c"]
    for weights in result.contributions.values():
        assert sorted(weights) == ["a", "b", "c"]
        assert math.isclose(sum(weights.values()), 1)
    for key in HEAD:
        torch.testing.assert_close(seen[1][key], seen[0][key] + 0.5)


LONG = "h" * 64


@pytest.mark.parametrize("registered", [("ward", "ward"), (f"{LONG}A", f"{LONG}B")], ids=["shared", "long"])
@pytest.mark.parametrize("joins", [1, 2], ids=["from the first round", "later"])
def test_who_a_node_is_does_not_depend_on_who_else_is_online_nor_on_a_restart(
    tmp_path: Path, registered: tuple[str, str], joins: int
) -> None:
    """Two nodes whose names look the same, each alone with the others for a round; the server is killed in between."""
    presence = {1: "ABc" if joins == 1 else "Ac", 2: "ABc", 3: "Bc", 4: "Ac", 5: "Bc", 6: "ABc"}
    seen: dict[str, dict[int, dict[str, torch.Tensor]]] = {"A": {}, "B": {}}

    def grid() -> SmallGrid:
        def host(message: Message) -> Message:
            grid.online = set(presence.get(message.content["config"]["server-round"] + 1, "ABc"))
            return learner(0.3)(message)  # type: ignore[return-value]

        def noting(name: str, shift: float) -> Client:
            def train(message: Message) -> Message:
                seen[name][int(message.content["config"]["server-round"])] = arrays_of(message)
                return learner(shift)(message)  # type: ignore[return-value]

            return train

        grid = SmallGrid({"A": noting("A", 0.1), "B": noting("B", -0.2), "c": host})
        grid.registered |= dict(zip("AB", registered, strict=True))
        return grid

    first, second = grid(), grid()
    first.online, second.online = set(presence[1]), set(presence[4])
    with pytest.raises(KeyboardInterrupt):
        strategy(tmp_path, warmup=6).start(first, initial(), num_rounds=6, evaluate_fn=interrupted(3))
    result = strategy(tmp_path, warmup=6).start(second, initial(), num_rounds=6)
    assert [len(record["client_weights"]) for record in result.records] == [len(presence[1]), 3, 3, 3, 3, 3]
    by_round = [set(record["weights"]) - {"c"} for record in result.records]
    (b,), (a,) = by_round[2], by_round[3]
    assert by_round[1:] == [{a, b}, {b}, {a}, {b}, {a, b}]
    # Each is sent the head that it returned last, never that of the other.
    for name, shift in (("A", 0.1), ("B", -0.2)):
        rounds = sorted(seen[name])
        for before, after in itertools.pairwise(rounds):
            for key in HEAD:
                torch.testing.assert_close(seen[name][after][key], seen[name][before][key] + shift)


def test_a_folder_from_before_names_were_kept_goes_on_with_the_same_clients(tmp_path: Path) -> None:
    whole = strategy().start(SmallGrid(clients()), initial(), num_rounds=3)
    with pytest.raises(KeyboardInterrupt):
        strategy(tmp_path).start(SmallGrid(clients()), initial(), num_rounds=3, evaluate_fn=interrupted(2))
    (tmp_path / "names.json").unlink()
    assert same(whole, strategy(tmp_path).start(SmallGrid(clients()), initial(), num_rounds=3))


def interrupted(after: int | None) -> Any:
    """As an evaluation, what kills the server after a round."""

    def evaluate(number: int, arrays: ArrayRecord) -> None:
        if number == after:
            raise KeyboardInterrupt

    return evaluate


def test_a_client_that_multiplies_its_head_gains_no_weight() -> None:
    """With calibrated evidence; with the paper's, it does gain."""

    def boasting(message: Message) -> Message:
        model = arrays_of(learner(0.2)(message))  # type: ignore[arg-type]
        loud = {name: tensor * (10 if name in HEAD else 1) for name, tensor in model.items()}
        return reply(message, ArrayRecord(loud))

    def weight(third: Client, **options: Any) -> float:
        play = CelmStrategy(network(), (6,), 3, rule_options=options, fraction_evaluate=0.0, preset=None)
        grid = SmallGrid({"a": learner(0.3), "b": learner(0.4), "c": third})
        return play.start(grid, initial(), num_rounds=1).contributions[1]["c"]

    calibrated = {"evidence": "calibrated"}
    assert weight(boasting, **calibrated) == pytest.approx(weight(learner(0.2), **calibrated), abs=0.01)
    assert weight(boasting) > weight(learner(0.2)) + 0.05


def test_a_late_joiner_starts_at_the_mean_weight() -> None:
    grid = SmallGrid(clients())
    grid.online = {"a", "b"}
    plain = learner(0.1)

    def opening(message: Message) -> Message:
        grid.online = {"a", "b", "c"}
        return plain(message)  # type: ignore[return-value]

    grid.clients["a"] = opening
    result = strategy(warmup=1).start(grid, initial(), num_rounds=2)
    assert sorted(result.contributions[1]) == ["a", "b"]
    assert result.contributions[2]["c"] == pytest.approx(1 / 3)


def test_a_round_with_too_few_usable_replies_is_tried_again() -> None:
    grid = SmallGrid(clients())
    failures = iter([True, True, False, False])
    grid.clients["a"] = lambda message: None if next(failures) else learner(1.0)(message)
    result = strategy(min_clients=3, retries=2).start(grid, initial(), num_rounds=2)
    assert [record["round"] for record in result.records] == [1, 2]


def test_after_a_bounded_number_of_attempts_it_ends_with_a_clear_error_and_the_state_is_kept(
    tmp_path: Path,
) -> None:
    grid = SmallGrid(clients())
    grid.clients["a"] = lambda message: (
        learner(1.0)(message) if message.content["config"]["server-round"] == 1 else None
    )
    with pytest.raises(
        CelmError, match=r"round 2: fewer than 3 usable replies in 2 attempts; the state is saved"
    ):
        strategy(tmp_path, min_clients=3, retries=1).start(grid, initial(), num_rounds=3)
    failed = [json.loads(line) for line in (tmp_path / "failures.jsonl").read_text().splitlines()]
    assert [(line["round"], line["attempt"], line["excluded"]) for line in failed] == [
        (2, 1, {"a": "no reply in time"}),
        (2, 2, {"a": "no reply in time"}),
    ]
    # With the client back, it goes on as if nothing had been.
    resumed = strategy(tmp_path, min_clients=3).start(SmallGrid(clients_like(1.0)), initial(), num_rounds=3)
    assert len(resumed.records) == 3


def clients_like(shift: float) -> dict[str, Client]:
    return {**clients(), "a": learner(shift)}


def test_the_wait_for_nodes_has_an_end() -> None:
    grid = SmallGrid(clients())
    grid.online = {"a"}
    with pytest.raises(CelmError, match=r"1 of at least 2 nodes connected within 0.01 s"):
        strategy(node_timeout=0.01).start(grid, initial(), num_rounds=1)


@pytest.mark.parametrize("killed_in", [1, 2, 4])
def test_a_killed_server_goes_on_to_the_same_weights_and_model(tmp_path: Path, killed_in: int) -> None:
    """Warm-up is three rounds of five: in the first, within it, after it."""
    whole = strategy().start(SmallGrid(clients()), initial(), num_rounds=5)

    class Killed(BaseException):
        pass

    def dying(message: Message) -> Message:
        if message.content["config"]["server-round"] == killed_in:
            raise Killed
        return learner(-0.2)(message)  # type: ignore[return-value]

    with pytest.raises(Killed):
        strategy(tmp_path).start(SmallGrid({**clients(), "b": dying}), initial(), num_rounds=5)
    grid = SmallGrid(clients())
    resumed = strategy(tmp_path).start(grid, initial(), num_rounds=5)
    assert same(whole, resumed)
    assert grid.sent[0].content["config"]["server-round"] == killed_in
    assert resumed.evidence == whole.evidence
    assert dict(resumed.train_metrics_clientapp) == dict(whole.train_metrics_clientapp)
    verify_chain(tmp_path / "rounds.jsonl")


def test_a_resumed_server_that_looks_for_idlers_writes_the_same_record(tmp_path: Path) -> None:
    """What it restores enters products whose rounding depends on where memory begins; these shapes show it."""

    def module() -> nn.Module:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            return nn.Sequential(nn.Flatten(), nn.Linear(6, 33), nn.ReLU(), nn.Linear(33, 3))

    def trained(seed: int) -> Client:
        def train(message: Message) -> Message:
            number = int(message.content["config"]["server-round"])
            generator = torch.Generator().manual_seed(100 * seed + number)
            sent = arrays_of(message).items()
            moved = {name: x + 0.1 * torch.randn(x.shape, generator=generator) for name, x in sent}
            return reply(message, ArrayRecord(moved))

        return train

    def record(folder: Path | None, after: int | None = None) -> list[dict[str, Any]]:
        options = {"warmup": 1, "evidence": "calibrated", "idle_check": "on-drift"}
        play = CelmStrategy(
            module(), (6,), 3, folder=folder, rule_options=options, probe={"steps": 3}, fraction_evaluate=0.0
        )
        grid = SmallGrid({name: trained(seed) for seed, name in enumerate("abc")})
        first = ArrayRecord(module().state_dict())
        result = play.start(grid, first, num_rounds=4, evaluate_fn=interrupted(after))
        return [{**line, "time": None, "previous": None, "heads": None} for line in result.records]

    with pytest.raises(KeyboardInterrupt):
        record(tmp_path, after=2)
    assert record(tmp_path) == record(None)


def test_without_a_folder_a_strategy_can_be_started_again() -> None:
    again = strategy()
    first = again.start(SmallGrid(clients()), initial(), num_rounds=2)
    second = again.start(SmallGrid(clients()), initial(), num_rounds=2)
    assert same(first, second)
    assert [record["round"] for record in second.records] == [1, 2]


def test_without_a_folder_a_strategy_can_be_started_again_from_where_it_ended() -> None:
    again = strategy()
    first = again.start(SmallGrid(clients()), initial(), num_rounds=2)
    second = again.start(SmallGrid(clients()), first.arrays, num_rounds=2)
    assert same(second, strategy().start(SmallGrid(clients()), first.arrays, num_rounds=2))


def test_a_finished_federation_is_only_read(tmp_path: Path) -> None:
    whole = strategy(tmp_path).start(SmallGrid(clients()), initial(), num_rounds=2)
    grid = SmallGrid({})
    again = strategy(tmp_path).start(grid, initial(), num_rounds=2)
    assert same(whole, again)
    assert grid.sent == []


def test_a_folder_belongs_to_one_set_of_settings_and_to_one_server_at_a_time(tmp_path: Path) -> None:
    strategy(tmp_path).start(SmallGrid(clients()), initial(), num_rounds=2)
    with pytest.raises(CelmError, match=r"other settings: seed is 42 there, 7 here"):
        strategy(tmp_path, seed=7).start(SmallGrid(clients()), initial(), num_rounds=2)
    first = strategy(tmp_path)
    with first.state_store.lock(), pytest.raises(CelmError, match="in use by another process"):
        strategy(tmp_path).start(SmallGrid(clients()), initial(), num_rounds=2)


def test_what_was_not_evaluated_when_the_server_died_is_evaluated_first(tmp_path: Path) -> None:
    judged: list[int] = []

    def judge(number: int, arrays: ArrayRecord) -> MetricRecord:
        if number == 1 and not judged[1:]:
            judged.append(number)
            raise KeyboardInterrupt
        judged.append(number)
        return MetricRecord({"accuracy": number / 10, "odd": float("nan")})

    with pytest.raises(KeyboardInterrupt):
        strategy(tmp_path).start(SmallGrid(clients()), initial(), num_rounds=2, evaluate_fn=judge)
    result = strategy(tmp_path).start(SmallGrid(clients()), initial(), num_rounds=2, evaluate_fn=judge)
    assert judged == [0, 1, 1, 2]
    found = {number: dict(metrics) for number, metrics in result.evaluate_metrics_serverapp.items()}
    assert found == {0: {"accuracy": 0.0}, 1: {"accuracy": 0.1}, 2: {"accuracy": 0.2}}


def test_a_line_torn_by_a_kill_does_not_count(tmp_path: Path) -> None:
    strategy(tmp_path, fraction_evaluate=1.0).start(SmallGrid(clients()), initial(), num_rounds=1)
    for name in ("rounds.jsonl", "evaluations.jsonl"):
        with (tmp_path / name).open("a") as file:
            file.write('{"round": 2, "torn')
    settings = json.loads((tmp_path / "settings.json").read_text())
    assert settings["rounds"] == 1
    strategy(tmp_path, fraction_evaluate=1.0).start(SmallGrid(clients()), initial(), num_rounds=1)
    assert (tmp_path / "evaluations.jsonl").read_text().count("\n") == 2
    assert "torn" not in (tmp_path / "rounds.jsonl").read_text()


def test_a_record_that_was_changed_is_found(tmp_path: Path) -> None:
    strategy(tmp_path).start(SmallGrid(clients()), initial(), num_rounds=3)
    lines = (tmp_path / "rounds.jsonl").read_text().splitlines()
    records = [json.loads(line) for line in lines]
    check_chain(records)
    assert {record["settings"] for record in records} == {records[0]["settings"]}
    assert records[0]["model"] == records[1]["start"]
    records[1]["client_weights"]["a"] += 0.01
    with pytest.raises(CelmError, match="line 2 or 3"):
        check_chain(records)
    with pytest.raises(CelmError, match="line 1 or 2"):
        check_chain([json.loads(lines[0]), json.loads(lines[2])])


def test_what_it_writes_is_what_the_report_and_the_check_read(tmp_path: Path) -> None:
    options = {"warmup": 1, "evidence": "calibrated", "idle_check": "on-drift"}
    grid = SmallGrid({**clients(), "d": lambda message: None})
    strategy(tmp_path, rule_options=options).start(grid, initial(), num_rounds=2)
    last = hashlib.sha256((tmp_path / "rounds.jsonl").read_bytes().splitlines()[-1]).hexdigest()
    kept = read_state_folder(tmp_path, last)
    assert kept.settings is not None
    assert kept.settings["rule"]["idle_check"] == "on-drift"
    page = build_report(tmp_path)
    assert last in page
    assert "no reply in time" in page


def test_a_relative_folder_is_taken_once_and_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.chdir(tmp_path)
    logging.getLogger("flwr").addHandler(caplog.handler)
    with caplog.at_level(logging.INFO, logger="flwr"):
        play = strategy(Path("state"))
    logging.getLogger("flwr").removeHandler(caplog.handler)
    assert str(tmp_path / "state") in caplog.text
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    play.start(SmallGrid(clients()), initial(), num_rounds=1)
    assert (tmp_path / "state" / "rounds.jsonl").exists()
    assert list((tmp_path / "elsewhere").iterdir()) == []


def test_the_table_has_the_heaviest_first_and_says_where_the_page_comes_from(tmp_path: Path) -> None:
    play = strategy(tmp_path / "my state")
    result = play.start(SmallGrid(clients()), initial(), num_rounds=1)
    head, *rows, hint = play.table().splitlines()
    weights = result.contributions[1]
    assert head.split() == ["client", "weight", "earned", "evidence", "for", "(not", "tested)"]
    assert [row.split()[0] for row in rows] == sorted(weights, key=lambda name: -weights[name])
    for row in rows:
        name, number, percent, earned, percent_earned, *held = row.split()
        assert (float(number), percent) == (round(100 * weights[name], 1), "%")
        assert (float(earned), percent_earned) == (round(100 * result.earned[name], 1), "%")
        with_evidence = [k for k, value in enumerate(result.evidence[1][name]) if value > 0]
        assert int(held[0]) == len(with_evidence)
        assert [int(k) for k in held[3:]] == with_evidence
    assert hint == f"for a page: celm report '{tmp_path / 'my state'}'"
    assert strategy().table().startswith("no round")


def test_own_loops_work_as_with_any_strategy_of_flower() -> None:
    """Flower's loop, by hand: the arrays that the loop passes on are the global model."""
    grid = SmallGrid(clients())
    loop = strategy(warmup=1)
    arrays = loop.prepare(initial(), 2)
    for number in (1, 2):
        replies = grid.send_and_receive(loop.configure_train(number, arrays, ConfigRecord({"lr": 0.1}), grid))
        merged, _ = loop.aggregate_train(number, replies)
        assert merged is not None
        arrays = merged
    assert grid.sent[-1].content["config"]["lr"] == 0.1
    # What the loop puts into the arrays is what clients get.
    changed = ArrayRecord(dict(arrays))
    changed["3.bias"] = Array(np.full(3, 7, np.float32))
    loop.configure_train(3, changed, ConfigRecord(), grid)
    assert loop.pending_round is not None
    assert arrays_of(loop.pending_round.messages["a"])["3.bias"].tolist() == [7, 7, 7]
    assert same(strategy(warmup=1).start(SmallGrid(clients()), initial(), num_rounds=2), loop.result(arrays))


def test_misuse_is_an_error_that_says_what_to_do() -> None:
    with pytest.raises(CelmError, match="round 1 was not configured"):
        strategy().aggregate_train(1, [])
    with pytest.raises(CelmError, match="needs held-out data"):
        ContributionStrategy("shapley", network(), (6,), 3)
    with pytest.raises(CelmError, match="into \\[2, 3\\], not \\[2, 4\\]"):
        CelmStrategy(network(), (6,), 4)
    with pytest.raises(CelmError, match=r"unknown setting 'rule\.wormup'"):
        CelmStrategy(network(), (6,), 3, rule_options={"wormup": 2})
    with pytest.raises(CelmError, match="unknown rule 'celn'"):
        ContributionStrategy("celn", network(), (6,), 3)
    with pytest.raises(CelmError, match="fraction_train must be between 0 and 1"):
        strategy(fraction_train=1.5)
    with pytest.raises(CelmError, match="fraction_train"):
        strategy(fraction_train=0.0)
    with pytest.raises(CelmError, match="probe_engine must be 'local' or 'ray', not 'rye'"):
        strategy(probe_engine="rye")
    with pytest.raises(CelmError, match="an nn"):
        CelmStrategy(lambda: 3, (6,), 3)  # type: ignore[arg-type,return-value]


@pytest.mark.parametrize(
    ("last", "classes", "words"),
    [
        (nn.Softmax(dim=1), 3, "probabilities \\(softmax\\).*return logits"),
        (nn.LogSoftmax(dim=1), 3, "probabilities \\(log-softmax\\)"),
        (nn.Sigmoid(), 3, "probabilities \\(sigmoid\\)"),
        (nn.Linear(3, 1), 2, "one output for each input, as in regression"),
        (nn.Identity(), 1, "1 class: "),
        (nn.LSTM(3, 3), 3, "must return logits, not tuple.*`logits`"),
    ],
)
def test_tasks_without_a_logit_for_each_of_several_classes_are_refused(
    last: nn.Module, classes: int, words: str
) -> None:
    with pytest.raises(CelmError, match=words):
        CelmStrategy(nn.Sequential(network(), last), (6,), classes)


def test_rules_that_need_validation_data_get_the_servers_own() -> None:
    inputs, labels = torch.randn(30, 6), torch.arange(30) % 3
    rule = ContributionStrategy(
        "leave_one_out", network, (6,), 3, validation=(inputs, labels), fraction_evaluate=0.0
    )
    result = rule.start(SmallGrid(clients()), initial(), num_rounds=1)
    assert sum(result.contributions[1].values()) == pytest.approx(1)


def test_rules_that_need_more_of_clients_get_it_from_clients_that_send_it() -> None:
    """FedNova by the number of local steps, FedCE by the accuracy of a second model."""

    def helpful(message: Message) -> Message:
        accuracy = 0.5 if "examine" in message.content else 0.0
        moved = {name: tensor + 0.1 for name, tensor in arrays_of(message).items()}
        return reply(message, ArrayRecord(moved), num_steps=4, examined_accuracy=accuracy, num_examples=2)

    for rule in ("fednova", "fedce"):
        grid = SmallGrid({"a": helpful, "b": helpful})
        play = ContributionStrategy(rule, network(), (6,), 3, fraction_evaluate=0.0)
        result = play.start(grid, initial(), num_rounds=3)
        assert result.contributions[3] == pytest.approx({"a": 0.5, "b": 0.5})
    assert any("examine" in message.content for message in grid.sent)


def test_the_settings_and_the_shares_of_a_round_are_logged(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG, logger="flwr"):
        logging.getLogger("flwr").addHandler(caplog.handler)
        strategy().start(SmallGrid(clients()), initial(), num_rounds=1)
        logging.getLogger("flwr").removeHandler(caplog.handler)
    assert "rounds 1-3 of 1" in caplog.text
    assert "weigh " in caplog.text
    assert "save " in caplog.text
