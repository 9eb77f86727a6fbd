"""`celm watch`: what it shows of a federation, a run and a study, at each width, and beside a server that writes."""

from __future__ import annotations

import io
import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from rich.console import Console
from typer.testing import Result

pytest.importorskip("flwr", reason="Flower is not installed: pip install 'celm[flower]'")

from flwr.app import ArrayRecord

import celm
from celm.cli.progress_view import EtaEstimator
from celm.cli.watch import render
from celm.operations.snapshot import RoundsSnapshot, StudySnapshot, snapshot_folder
from support.small_grid import SmallGrid, initial
from support.state_folders import clients, lines_of, play, strategy

Invoke = Callable[..., Result]
Refused = Callable[..., str]


def show(folder: Path, width: int, height: int = 24) -> list[str]:
    console = Console(width=width, height=height, record=True, file=io.StringIO())
    console.print(render(snapshot_folder(folder), EtaEstimator(), console))
    return [line.rstrip() for line in console.export_text().splitlines()]


def stop_after(rounds: int) -> Callable[[int, ArrayRecord], None]:
    def stop(number: int, _: ArrayRecord) -> None:
        if number == rounds:
            raise KeyboardInterrupt

    return stop


@pytest.fixture
def state(tmp_path: Path) -> Path:
    """Two of three rounds; client d never answers."""
    grid = SmallGrid({**clients(), "d": lambda _: None})
    with pytest.raises(KeyboardInterrupt):
        strategy(tmp_path / "state").start(grid, initial(), 3, evaluate_fn=stop_after(2))
    return tmp_path / "state"


@pytest.mark.parametrize("width", [60, 80, 160])
def test_a_federation_fits_the_terminal(state: Path, width: int) -> None:
    lines = show(state, width)
    assert all(len(line) <= width for line in lines)
    text = "\n".join(lines)
    assert "round 2 of 3" in text
    weights = lines_of(state / "rounds.jsonl")[-1]["client_weights"]
    rows = {line.split()[0]: line for line in lines[-4:]}
    for client in "abc":
        assert f"{100 * weights[client]:.1f} %" in rows[client]
        assert "2 of 2" in rows[client]
    assert "0 of 2" in rows["d"]
    assert "excl" in rows["d"]
    assert lines[-4].startswith("d ")  # flagged clients come first
    if width > 100:
        assert "no reply in time" in rows["d"]


def test_a_low_terminal_counts_the_other_clients(state: Path) -> None:
    lines = show(state, 80, height=10)
    assert len(lines) <= 10
    assert lines[-1] == "and 1 more"


def test_time_left_follows_from_the_times_of_the_record(state: Path) -> None:
    snapshot = snapshot_folder(state)
    assert isinstance(snapshot, RoundsSnapshot)
    assert snapshot.time_left is not None
    assert 0 <= snapshot.time_left.total_seconds() <= 60
    assert not snapshot.is_finished


def test_before_the_first_round(tmp_path: Path, invoke: Invoke) -> None:
    grid = SmallGrid(clients())
    with pytest.raises(KeyboardInterrupt):
        strategy(tmp_path / "state").start(grid, initial(), 3, evaluate_fn=stop_after(0))
    done = invoke("watch", tmp_path / "state", "--once")
    assert done.exit_code == 0, done.output
    assert "no round has ended yet" in done.stdout


def test_a_run_and_a_comparison(tmp_path: Path, invoke: Invoke) -> None:
    settings = {"split": {"name": "iid", "clients": 2}, "model": {"name": "mlp", "widths": [8]}}
    run = celm.run(celm.Experiment(rule="fedavg", run={"rounds": 2}, **settings), tmp_path / "run")
    printed = invoke("watch", run.folder).stdout
    assert "round 2 of 2" in printed
    assert f"accuracy {100 * run.metrics['accuracy']:.2f} %" in printed
    cells = tmp_path / "study" / "cells"
    shutil.copytree(run.folder, cells / "one")
    shutil.copytree(run.folder, cells / "two", ignore=shutil.ignore_patterns("result.json"))
    snapshot = snapshot_folder(tmp_path / "study")
    assert isinstance(snapshot, StudySnapshot)
    assert [(r.name, r.done, r.planned, r.state) for r in snapshot.runs] == [
        ("cells/one", 2, 2, "finished"),
        ("cells/two", 2, 2, "started"),
    ]
    printed = invoke("watch", tmp_path / "study").stdout
    assert "1 of 2 runs" in printed
    assert printed.index("cells/two") < printed.index("cells/one")


def test_what_cannot_be_watched_is_one_line(tmp_path: Path, state: Path, refused: Refused) -> None:
    assert "is not a folder" in refused("watch", tmp_path / "nowhere")
    refusal = refused("watch", tmp_path)
    assert "has no settings.toml or rounds.jsonl" in refusal
    assert "study" in refusal
    path = state / "rounds.jsonl"
    path.write_text(path.read_text().replace('"b": 0.', '"b": 1.', 1))
    assert "was changed" in refused("watch", state)


@pytest.mark.slow
@pytest.mark.skipif(os.name != "posix", reason="a pseudo-terminal")
def test_it_follows_a_server_and_ends_with_it(state: Path) -> None:
    import pty

    main, terminal = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-m", "celm", "watch", str(state), "--interval=0.2"],
        stdout=terminal,
        stdin=terminal,
        env={**os.environ, "TERM": "xterm", "COLUMNS": "80", "LINES": "24"},
    )
    os.close(terminal)
    chunks: list[bytes] = []
    is_shown = threading.Event()

    def read() -> None:
        try:
            while chunk := os.read(main, 65536):
                chunks.append(chunk)
                if b"round 2 of 3" in b"".join(chunks):
                    is_shown.set()
        except OSError:  # the end of a pseudo-terminal
            pass

    reader = threading.Thread(target=read, daemon=True)
    reader.start()
    try:
        assert is_shown.wait(60)
        play(state, 3, SmallGrid({**clients(), "d": lambda _: None}))
        assert process.wait(60) == 0
        reader.join(10)
    finally:
        process.kill()
        process.wait()
        os.close(main)
    assert b"round 3 of 3" in b"".join(chunks)
