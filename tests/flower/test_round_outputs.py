"""Alerts, metrics.prom, JSON logs, kept uploads and the page: what they have, and that they never cost a round."""

from __future__ import annotations

import json
import logging
import os
import stat
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("flwr", reason="Flower is not installed: pip install 'celm[flower]'")

from flwr.app import ArrayRecord, ConfigRecord, MetricRecord
from flwr.common.logger import FLOWER_LOGGER
from safetensors.torch import load_file
from typer.testing import Result

from celm.base.errors import CelmError
from celm.base.files import tensor_digest
from celm.flower import Command, Webhook
from celm.flower.json_logs import set_log_format
from celm.operations.metrics_text import format_metrics
from support.consortium import play_consortium
from support.http_receiver import http_receiver
from support.small_grid import SmallGrid, initial
from support.state_folders import clients, lines_of, play, strategy

Received = tuple[str, list[dict[str, Any]]]


@pytest.fixture
def receiver(monkeypatch: pytest.MonkeyPatch) -> Iterator[Received]:
    """The address of an HTTP server, and what it received."""
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    with http_receiver() as address_and_messages:
        yield address_and_messages


def test_the_operator_is_told_of_each_event_once(tmp_path: Path, receiver: Received) -> None:
    """The federation of the runbook: one member is idle from round 6 on, another sends NaN."""
    url, messages = receiver
    play_consortium(tmp_path, 7, alerts=[Webhook(url)], refresh_report=True)
    play_consortium(tmp_path, 8, alerts=[Webhook(url)])  # a restart repeats nothing
    received = [message["body"] for message in messages]
    told = [(event["round"], event["client"], event["kind"]) for event in received]
    assert told.count((6, "east", "idle")) == 1
    assert told.count((1, "west", "excluded")) == 1
    assert [entry for entry in told if entry[1] in ("east", "west")] == [
        (1, "west", "excluded"),
        (6, "east", "idle"),
    ]
    assert {event["folder"] for event in received} == {str(tmp_path)}
    assert "shows no training" in (tmp_path / "report.html").read_text(encoding="utf-8")


def test_a_collapse_failed_attempts_and_the_end_are_told(tmp_path: Path, receiver: Received) -> None:
    url, messages = receiver
    curve = [0.34, 0.6, 0.8, 0.34]
    strategy(tmp_path, alerts=[Webhook(url)]).start(
        SmallGrid(clients()),
        initial(),
        3,
        evaluate_fn=lambda number, _: MetricRecord({"accuracy": curve[number]}),
    )
    silent = SmallGrid({name: lambda _: None for name in "abc"})
    with pytest.raises(CelmError):
        strategy(tmp_path, alerts=[Webhook(url)], retries=1).start(silent, initial(), 4)
    received = [message["body"] for message in messages]
    kinds = [(event["event"], event["round"]) for event in received]
    assert kinds == [("accuracy", 3), ("failed_attempt", 4), ("failed_attempt", 4), ("stopped", 3)]
    assert "collapsed in round 3" in received[0]["text"]


def test_failing_alerts_cost_no_round(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    grid = SmallGrid({**clients(), "d": lambda _: None})
    alerts = [Webhook("http://127.0.0.1:9/", timeout=1), Command(["false"]), Command(["/no/such/program"])]
    result = play(tmp_path, 3, grid, alerts=alerts)
    assert len(result.records) == 3
    failures = [line for line in caplog.messages if line.startswith("alert failed")]
    assert len(failures) == 3
    assert result.contributions == play(None, 3, SmallGrid({**clients(), "d": lambda _: None})).contributions


def test_wrong_settings_are_refused(tmp_path: Path) -> None:
    for settings, message in (
        ({"alerts": ["https://x"]}, "is not an alert"),
        ({"log_format": "xml"}, "log_format must be"),
        ({"keep_uploads": -1}, "out of range"),
        ({"keep_uploads": 1, "upload_bytes": 0}, "out of range"),
    ):
        with pytest.raises(CelmError, match=message):
            strategy(tmp_path, **settings)  # type: ignore[arg-type]
    for name in ("keep_uploads", "refresh_report"):
        with pytest.raises(CelmError, match=f"{name} needs a state folder"):
            strategy(None, **{name: True})


# --- metrics.prom -------------------------------------------------------------------------------------------


def parse_metrics(text: str) -> dict[str, float]:
    """Return sample to value, from text in the exposition format."""
    assert text.endswith("# EOF\n")
    lines = [line for line in text.splitlines() if not line.startswith("#")]
    return {sample: float(value) for sample, _, value in (line.rpartition(" ") for line in lines)}


def test_metrics_are_those_of_the_record(tmp_path: Path) -> None:
    grid = SmallGrid({**clients(), "d": lambda _: None})
    evaluate = lambda number, _: MetricRecord({"accuracy": number / 10})  # noqa: E731
    strategy(tmp_path).start(grid, initial(), 3, evaluate_fn=evaluate)
    metrics = parse_metrics((tmp_path / "metrics.prom").read_text())
    last = lines_of(tmp_path / "rounds.jsonl")[-1]
    assert metrics["celm_rounds"] == metrics["celm_rounds_planned"] == 3
    for client, weight in last["client_weights"].items():
        assert metrics[f'celm_client_weight{{client="{client}"}}'] == weight
        assert metrics[f'celm_client_earned{{client="{client}"}}'] == last["earned"][client]
    assert metrics['celm_client_flag{client="d",kind="excluded"}'] == 1
    assert metrics['celm_clients{state="answered"}'] == 3
    assert metrics['celm_clients{state="excluded"}'] == 1
    assert metrics['celm_metric{source="server",name="accuracy"}'] == 0.3
    assert metrics['celm_stage_seconds{stage="weigh"}'] > 0
    if os.name == "posix":
        assert stat.S_IMODE((tmp_path / "metrics.prom").stat().st_mode) == 0o600


def test_metrics_of_hostile_names_are_one_line_each() -> None:
    name = 'a"} 1\nfake_metric 2\\'
    record = {
        **{"round": 1, "time": "2026-01-01T00:00:00+00:00", "asked": [name], "received": {}},
        **{"excluded": {}, "absent": [], "client_weights": {name: 1.0}},
    }
    text = format_metrics([record], [], 0, 0, {})
    (line,) = [line for line in text.splitlines() if line.startswith("celm_client_weight{")]
    assert line == r'celm_client_weight{client="a\"} 1\\nfake_metric 2\\"} 1.0'


def test_a_metrics_file_that_cannot_be_written_is_logged_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "metrics.prom").mkdir(parents=True)
    result = play(tmp_path, 3)
    assert len(result.records) == 3
    assert sum("metrics not written" in line for line in caplog.messages) == 1
    (tmp_path / "metrics.prom").rmdir()
    caplog.clear()
    play(tmp_path, 4)
    assert parse_metrics((tmp_path / "metrics.prom").read_text())["celm_rounds"] == 4


@pytest.mark.skipif(sys.platform != "linux", reason="a limit on the size of files")
def test_a_full_disk_keeps_the_old_metrics(tmp_path: Path) -> None:
    """No file may exceed 4 bytes: the write fails as on a full disk, and the file keeps its content."""
    (tmp_path / "metrics.prom").write_text("old")
    script = (
        "import resource, signal, sys; from pathlib import Path\n"
        "from celm.live.round_outputs import RoundOutputs; from celm.live.state_store import StateStore\n"
        "store = StateStore(sys.argv[1]); outputs = RoundOutputs(store, [], 0, 1, False)\n"
        "store.records.append({'round': 1, 'time': '2026-01-01T00:00:00+00:00', 'asked': [], 'received': {},"
        " 'excluded': {}, 'absent': [], 'client_weights': {}})\n"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN); resource.setrlimit(resource.RLIMIT_FSIZE, (4, 4))\n"
        "outputs.after_round([], 3, {}); outputs.after_round([], 3, {})\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, str(tmp_path)],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("metrics not written") == 1
    assert os.listdir(tmp_path) == ["metrics.prom"]  # noqa: PTH208
    assert (tmp_path / "metrics.prom").read_text() == "old"


# --- logs ---------------------------------------------------------------------------------------------------


def test_log_lines_are_json_objects(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    script = (
        "import sys; sys.path.insert(0, sys.argv[2])\n"
        "from pathlib import Path; from support.small_grid import SmallGrid\n"
        "from support.state_folders import clients, play\n"
        "play(Path(sys.argv[1]), 2, SmallGrid({**clients(), 'd': lambda _: None}), log_format='json')\n"
    )
    tests = Path(__file__).resolve().parents[1]
    done = subprocess.run(
        [sys.executable, "-c", script, str(tmp_path / "state"), str(tests)],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    assert done.returncode == 0, done.stdout
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    assert all({"time", "level", "message"} <= line.keys() for line in lines)
    (flag,) = [line for line in lines if line.get("event") == "flag"]
    assert (flag["level"], flag["round"], flag["client"], flag["kind"]) == ("WARNING", 1, "d", "excluded")


def test_text_is_restored() -> None:
    handler = FLOWER_LOGGER.handlers[0]
    record = logging.LogRecord("flwr", logging.INFO, "", 0, "a %s", ("b",), None)
    usual = handler.format(record)
    set_log_format("json")
    try:
        assert json.loads(handler.format(record))["message"] == "a b"
    finally:
        set_log_format("text")
    assert handler.format(record) == usual


# --- uploads ------------------------------------------------------------------------------------------------


def test_the_last_uploads_are_kept_and_can_be_audited(
    tmp_path: Path, invoke: Callable[..., Result], monkeypatch: pytest.MonkeyPatch
) -> None:
    state = tmp_path / "state"
    play(state, 4, keep_uploads=2)
    uploads = state / "uploads"
    assert sorted(path.name for path in uploads.iterdir()) == ["round-000003", "round-000004"]
    for line in lines_of(state / "rounds.jsonl")[2:]:
        folder = uploads / f"round-{line['round']:06d}"
        assert tensor_digest(load_file(folder / "global.safetensors")) == line["start"]
        for client, received in line["received"].items():
            assert tensor_digest(load_file(folder / f"{client}.safetensors")) == received["sha256"]
        if os.name == "posix":
            assert stat.S_IMODE(folder.stat().st_mode) == 0o700
            assert {stat.S_IMODE(path.stat().st_mode) for path in folder.iterdir()} == {0o600}
    (tmp_path / "uploaded_nets.py").write_text("from support.small_grid import network\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    options = ("--model=uploaded_nets:network", "--input-shape=6", "--classes=3")
    done = invoke("audit", "--clients", uploads, *options, "--out", tmp_path / "audit", "--format=json")
    assert done.exit_code == 0, done.output
    assert set(json.loads(done.stdout)["scores"]) == {"a", "b", "c"}


def test_uploads_that_cannot_be_kept_cost_no_round(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    assert len(play(tmp_path, 3, keep_uploads=2, upload_bytes=10).records) == 3
    assert sum("uploads not written" in line for line in caplog.messages) == 1


def test_the_page_is_refreshed_in_each_round(tmp_path: Path) -> None:
    pages: list[str] = []

    def read_page(number: int, _: ArrayRecord) -> None:
        if number > 1:
            pages.append((tmp_path / "report.html").read_text(encoding="utf-8"))

    strategy(tmp_path, refresh_report=True).start(SmallGrid(clients()), initial(), 3, evaluate_fn=read_page)
    assert "round 1 of 3" in pages[0]
    assert "round 2 of 3" in pages[1]
    assert "round 3 of 3" in (tmp_path / "report.html").read_text(encoding="utf-8")


def test_the_page_is_refreshed_in_a_loop_of_ones_own(tmp_path: Path) -> None:
    own = strategy(tmp_path, refresh_report=True, num_rounds=2)
    grid = SmallGrid(clients())
    messages = own.configure_train(1, initial(), ConfigRecord(), grid)
    own.aggregate_train(1, grid.send_and_receive(messages))
    own.close()
    assert "round 1 of 2" in (tmp_path / "report.html").read_text(encoding="utf-8")
