"""What is seen of a grid: a live view in a terminal, a line a run elsewhere, nothing beside JSON."""

from __future__ import annotations

import io
import re
from collections.abc import Callable
from pathlib import Path

import pytest
from rich.console import Console
from typer.testing import Result

from celm.cli.grid_view import Clock, Screen
from celm.federation.experiment import Experiment
from celm.federation.folder import append_line
from celm.study.grid import Cell, Outcome, Progress

TINY = ("compare", "--methods=fedavg", "--clients=2", "--rounds=1", "--out=out")


def cell(folder: Path, seed: int) -> Cell:
    experiment = Experiment.parse({"run": {"seed": seed, "rounds": 10}})
    place = folder / f"cell-{seed}"
    place.mkdir()
    return Cell(experiment, place, "digits [bold]pls", "celm")


def drawn(standing: Progress) -> str:
    console = Console(file=io.StringIO(), width=120)
    console.print(Screen("main").drawn(standing))
    file = console.file
    assert isinstance(file, io.StringIO)
    return file.getvalue()


def test_the_screen_shows_what_runs_how_far_it_is_and_what_is_done(tmp_path: Path) -> None:
    cells = [cell(tmp_path, seed) for seed in range(4)]
    for number in (1, 2, 3):
        append_line(cells[1].place / "rounds.jsonl", {"round": number, "accuracy": number / 10})
    with (cells[1].place / "rounds.jsonl").open("a") as file:
        file.write('{"round": 4, "accur')  # being written
    ended = [Outcome(cells[0], {"accuracy": 0.5}), Outcome(cells[3], None, "no data")]
    text = drawn(Progress(cells, ended, [cells[1]], [cells[2]]))
    line = next(line for line in text.splitlines() if "seed 1" in line)
    assert " ".join(line.split()) == "digits [bold]pls celm seed 1 round 3 of 10 accuracy 30.00 %"
    assert "in another process: digits [bold]pls, celm, seed 2" in text
    assert "failed: digits [bold]pls, celm, seed 3" in text
    assert "2 of 4 runs" in text


def test_the_screen_says_when_there_is_nothing_but_to_wait(tmp_path: Path) -> None:
    cells = [cell(tmp_path, seed) for seed in range(5)]
    text = drawn(Progress(cells, [], [], cells))
    assert "in another process, waited for: digits [bold]pls, celm, seed 0" in text
    assert "seed 2; …" in text


def test_time_left_is_by_the_rounds_done_since_it_was_first_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, now = Clock(), [100.0]
    monkeypatch.setattr("time.monotonic", lambda: now[0])
    assert clock.left(40, 100) == ""
    now[0] += 20
    assert clock.left(50, 100) == "0:01:40"  # 2 seconds a round
    assert clock.left(100, 100) == ""


@pytest.mark.slow
def test_elsewhere_than_in_a_terminal_each_run_is_a_line(invoke: Callable[..., Result]) -> None:
    done = invoke(*TINY, "--seeds=1,2")
    assert done.exit_code == 0
    first, second = done.stderr.splitlines()
    assert re.fullmatch(r"1 of 2 runs(, .* left)?: digits, fedavg, seed [12]: accuracy .* %", first)
    assert second.startswith("2 of 2 runs: digits, fedavg, seed ")
    assert second.endswith(" %")
    more = invoke(*TINY, "--seeds=1,2,3", "--workers=1")
    assert more.stderr.splitlines()[0] == "2 of 3 runs were done before"


@pytest.mark.slow
def test_nothing_is_said_beside_json(invoke: Callable[..., Result]) -> None:
    done = invoke(*TINY, "--seeds=1", "--workers=1", "--format=json")
    assert done.exit_code == 0
    assert done.stderr == ""
