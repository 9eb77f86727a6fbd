"""`celm check`: what it finds, what it does not report, and its exit codes."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("flwr", reason="Flower is not installed: pip install 'celm[flower]'")

from flwr.app import ArrayRecord, MetricRecord
from typer.testing import Result

import celm
from celm.base.errors import CelmError
from celm.operations.check import check_folder, parse_duration
from support.small_grid import SmallGrid, initial
from support.state_folders import clients, lines_of, play, strategy

Invoke = Callable[..., Result]
Refused = Callable[..., str]


def test_idle_and_not_finite_members_are_found(consortium_folder: Path, invoke: Invoke) -> None:
    done = invoke("check", consortium_folder, "--format=json")
    assert done.exit_code == 4
    found = json.loads(done.stdout)
    assert set(found["flags"]) == {"east"}
    assert found["flags"]["east"].startswith("idle: ")
    assert set(found["excluded"]) == {"west"}
    assert "not finite" in found["excluded"]["west"]
    assert found["accuracy"] == 0.75
    assert (found["round"], found["rounds"], found["stalled"], found["alarms"]) == (8, 8, None, [])
    assert found["time"] == lines_of(consortium_folder / "rounds.jsonl")[-1]["time"]
    printed = invoke("check", consortium_folder)
    assert printed.exit_code == 4
    assert "flagged: east: idle" in printed.stdout
    assert "excluded: west" in printed.stdout


def test_an_honest_federation_has_no_findings(tmp_path: Path, invoke: Invoke) -> None:
    play(tmp_path / "state", 3)
    done = invoke("check", tmp_path / "state")
    assert done.exit_code == 0
    assert done.stdout.splitlines()[-1] == "nothing found"


def test_a_flag_that_is_gone_counts_only_with_since(tmp_path: Path, invoke: Invoke) -> None:
    grid = SmallGrid(clients())
    honest = grid.clients["a"]
    grid.clients["a"] = lambda message: (
        None if message.content["config"]["server-round"] == 1 else honest(message)
    )
    play(tmp_path / "state", 3, grid)
    assert invoke("check", tmp_path / "state").exit_code == 0
    since = invoke("check", tmp_path / "state", "--since=1h", "--format=json")
    assert since.exit_code == 4
    assert json.loads(since.stdout)["excluded"] == {"a": "no reply in time"}
    later = datetime.now(UTC) + timedelta(days=3)
    assert not check_folder(tmp_path / "state", timedelta(hours=1), now=later).found


def test_a_federation_without_new_rounds_has_stalled(tmp_path: Path, invoke: Invoke) -> None:
    state = tmp_path / "state"
    strategy(state).start(SmallGrid(clients()), initial(), 2)  # ends as planned: nothing is left to wait for
    later = datetime.now(UTC) + timedelta(hours=30)
    assert check_folder(state, now=later).stalled is None

    def stop(number: int, _: ArrayRecord) -> None:
        if number == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        strategy(state).start(SmallGrid(clients()), initial(), 5, evaluate_fn=stop)
    assert not check_folder(state, now=datetime.now(UTC)).found
    stalled = check_folder(state, now=later).stalled
    assert stalled is not None
    assert stalled.startswith("no round for 30.0 hours after round 3 of 5")
    assert not check_folder(state, stalled_after=timedelta(hours=31), now=later).found
    time.sleep(1.1)
    assert invoke("check", state, "--stalled-after=1s").exit_code == 4
    with pytest.raises(CelmError, match="fewer than 2"):
        strategy(state, retries=1).start(
            SmallGrid({"a": clients()["a"], **dict.fromkeys("bc", lambda _: None)}), initial(), 5
        )
    assert "2 failed attempts at round 4" in (check_folder(state).stalled or "")


def test_a_collapse_of_accuracy_is_found_until_it_recovers(tmp_path: Path) -> None:
    curve = [0.34, 0.6, 0.8, 0.34, 0.34, 0.33, 0.34, 0.8]

    def evaluate(number: int, _: ArrayRecord) -> MetricRecord:
        return MetricRecord({"accuracy": curve[number]})

    strategy(tmp_path).start(SmallGrid(clients()), initial(), 6, evaluate_fn=evaluate)
    result = check_folder(tmp_path)
    assert result.found
    assert not result.flags
    (alarm,) = result.alarms
    assert "collapsed in round 3" in alarm
    assert result.accuracy == pytest.approx(0.34)
    strategy(tmp_path).start(SmallGrid(clients()), initial(), 7, evaluate_fn=evaluate)
    assert not check_folder(tmp_path).found


def test_a_run_can_be_checked(tmp_path: Path, invoke: Invoke) -> None:
    run = celm.run(
        celm.Experiment(
            rule="fedavg",
            model={"name": "mlp", "widths": [8]},
            split={"name": "iid", "clients": 2},
            run={"rounds": 2},
        ),
        tmp_path / "run",
    )
    found = json.loads(invoke("check", run.folder, "--format=json").stdout)
    assert found["accuracy"] == run.metrics["accuracy"]
    assert (found["round"], found["rounds"]) == (2, 2)
    done = invoke("check", run.folder, "--since=1h")
    assert done.exit_code == 2
    assert "have no times" in done.stderr


def test_what_is_not_a_record_is_one_line(tmp_path: Path, refused: Refused) -> None:
    assert "is not a folder" in refused("check", tmp_path / "nowhere")
    assert "has no settings.toml or rounds.jsonl" in refused("check", tmp_path)
    state = tmp_path / "state"
    play(state, 2)
    for wrong in ("12", "-3h", "many", "0h", "1y"):
        assert "is not a duration" in refused("check", state, f"--since={wrong}")
    path = state / "rounds.jsonl"
    honest = path.read_text()
    path.write_text(honest.replace('"asked": ["a"', '"asked": ["z"', 1))
    assert "rounds.jsonl was changed" in refused("check", state)
    path.write_text("[1]\n")
    assert "damaged" in refused("check", state)
    (state / "evaluations.jsonl").unlink()
    path.write_text(honest[:20])
    assert "no complete line" in refused("check", state)


def test_an_incomplete_last_line_does_not_count(tmp_path: Path) -> None:
    play(tmp_path, 2)
    with (tmp_path / "rounds.jsonl").open("a") as file:
        file.write('{"round": 3, "to')
    assert check_folder(tmp_path).round == 2


def test_nothing_is_written(consortium_folder: Path, invoke: Invoke) -> None:
    def snapshot() -> dict[str, Any]:
        return {
            str(path): (path.stat().st_mtime_ns, path.stat().st_size)
            for path in sorted(consortium_folder.rglob("*"))
        }

    before = snapshot()
    invoke("check", consortium_folder)
    assert snapshot() == before
    assert os.listdir(consortium_folder)  # noqa: PTH208


def test_durations() -> None:
    assert parse_duration("90s") == timedelta(seconds=90)
    assert parse_duration(" 2d ") == timedelta(days=2)
