"""Progress of a grid of runs: a live view in a terminal, a line per run elsewhere, nothing beside JSON."""

from __future__ import annotations

import io
import re
from collections.abc import Callable
from pathlib import Path

import pytest
from rich.console import Console
from typer.testing import Result

from celm.base.json_files import append_jsonl
from celm.cli.progress_view import EtaEstimator, LiveView
from celm.experiment.config import Experiment
from celm.study.plan import RunSpec
from celm.study.results import RunOutcome
from celm.study.scheduler import GridProgress
from support.run_results import make_result

TINY = ("compare", "--methods=fedavg", "--split=iid", "--clients=2", "--rounds=1", "--out=out")


def make_spec(folder: Path, seed: int) -> RunSpec:
    experiment = Experiment.parse({"run": {"seed": seed, "rounds": 10}})
    run_folder = folder / f"cell-{seed}"
    run_folder.mkdir()
    return RunSpec(experiment, run_folder, "digits [bold]pls", "celm")


def rendered(progress: GridProgress) -> str:
    console = Console(file=io.StringIO(), width=120)
    console.print(LiveView("main").render(progress))
    file = console.file
    assert isinstance(file, io.StringIO)
    return file.getvalue()


def test_the_live_view_shows_running_finished_and_failed_runs(tmp_path: Path) -> None:
    specs = [make_spec(tmp_path, seed) for seed in range(4)]
    for number in (1, 2, 3):
        append_jsonl(specs[1].folder / "rounds.jsonl", {"round": number, "accuracy": number / 10})
    with (specs[1].folder / "rounds.jsonl").open("a") as file:
        file.write('{"round": 4, "accur')  # being written
    ended = [RunOutcome(specs[0], make_result(accuracy=0.5)), RunOutcome(specs[3], None, "no data")]
    text = rendered(GridProgress(specs, ended, [specs[1]], [specs[2]]))
    line = next(line for line in text.splitlines() if "seed 1" in line)
    assert " ".join(line.split()) == "digits [bold]pls celm seed 1 round 3 of 10 accuracy 30.00 %"
    assert "running in another process: digits [bold]pls, celm, seed 2" in text
    assert "failed: digits [bold]pls, celm, seed 3" in text
    assert "2 of 4 runs" in text


def test_the_live_view_says_when_it_only_waits(tmp_path: Path) -> None:
    specs = [make_spec(tmp_path, seed) for seed in range(5)]
    text = rendered(GridProgress(specs, [], [], specs))
    assert "waiting for runs in another process: digits [bold]pls, celm, seed 0" in text
    assert "seed 2; …" in text


def test_time_left_is_by_the_rounds_done_since_it_was_first_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, now = EtaEstimator(), [100.0]
    monkeypatch.setattr("time.monotonic", lambda: now[0])
    assert clock.time_left(40, 100) == ""
    now[0] += 20
    assert clock.time_left(50, 100) == "0:01:40"  # 2 seconds a round
    assert clock.time_left(100, 100) == ""


@pytest.mark.slow
def test_outside_a_terminal_each_run_is_a_line(invoke: Callable[..., Result]) -> None:
    done = invoke(*TINY, "--seeds=1,2")
    assert done.exit_code == 0
    first, second = done.stderr.splitlines()
    assert re.fullmatch(r"1 of 2 runs(, .* left)?: digits, fedavg, seed [12]: accuracy .* %", first)
    assert second.startswith("2 of 2 runs: digits, fedavg, seed ")
    assert second.endswith(" %")
    again = invoke(*TINY, "--seeds=1,2,3", "--workers=1")
    assert again.stderr.splitlines()[0].startswith("2 of 3 runs")


@pytest.mark.slow
def test_nothing_is_printed_beside_json(invoke: Callable[..., Result]) -> None:
    done = invoke(*TINY, "--seeds=1", "--workers=1", "--format=json")
    assert done.exit_code == 0
    assert done.stderr == ""
