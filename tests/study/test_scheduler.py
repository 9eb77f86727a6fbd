"""One grid and several processes: no run is done twice, none is lost, whoever is killed when."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from celm.experiment.config import Experiment
from celm.records.run_files import RunFiles
from celm.runs.run_folder import RunFolder
from celm.study.local_pool import ProcessPool
from celm.study.plan import RunSpec, plan_comparison
from celm.study.scheduler import GridProgress, run_all, run_one

Start = Callable[..., Any]
SMALL = {
    "dataset": {"name": "digits"},
    "split": {"name": "pls", "clients": 3},
    "train": {"batch": 32},
    "rule": {"name": "fedavg"},
    "run": {"rounds": 2},
}
LONG = ("--clients=3", "--seeds=1", "--rounds=60", "--set=train.batch=16", "--set=train.epochs=2")


class InThisProcess:
    """A pool that needs no process: what is tested is who gets which cell."""

    def __init__(self, size: int = 1) -> None:
        self.size = size
        self.threads = ThreadPoolExecutor(size)

    def submit(self, spec: RunSpec) -> Future[None]:
        return self.threads.submit(run_one, spec)

    def close(self) -> None:
        self.threads.shutdown()


def small_cells(folder: Path, seeds: int) -> list[RunSpec]:
    cells = plan_comparison(Experiment.parse(SMALL), ["fedavg"], range(seeds), folder, None)
    return list(cells.values())


def starts(cell: Path) -> int:
    return len(json.loads((cell / "environment.json").read_text())["starts"])


def test_what_another_process_holds_is_left_to_the_end_and_then_waited_for(tmp_path: Path) -> None:
    cells = small_cells(tmp_path, 3)
    cells[0].folder.mkdir(parents=True)
    lock = RunFolder(cells[0].folder).lock()
    lock.__enter__()
    seen: list[GridProgress] = []
    while_held: list[GridProgress] = []
    lock_held = [True]

    def watch(progress: GridProgress) -> None:
        seen.append(progress)
        while_held.extend([progress] if lock_held else [])
        if progress.locked_elsewhere and not progress.running and lock_held:
            lock_held.clear()
            lock.__exit__(None, None, None)

    outcomes = run_all(cells, InThisProcess, watch)
    assert [outcome.error for outcome in outcomes] == [None] * 3
    assert [outcome.spec for outcome in seen[-1].outcomes] == [cells[1], cells[2], cells[0]]
    assert while_held
    assert all(cells[0] not in progress.running for progress in while_held)


def test_what_another_process_ends_meanwhile_is_taken_as_it_is(tmp_path: Path) -> None:
    cells = small_cells(tmp_path, 2)
    others: list[Future[None]] = []

    def watch(progress: GridProgress) -> None:
        if not others:
            others.append(ThreadPoolExecutor(1).submit(run_one, cells[1]))
            while not (cells[1].folder / "environment.json").exists():
                time.sleep(0.01)

    outcomes = run_all(cells, InThisProcess, watch)
    assert [outcome.error for outcome in outcomes] == [None, None]
    assert outcomes[1].result is not None
    assert [starts(cell.folder) for cell in cells] == [1, 1]


def test_a_damaged_result_is_an_error_of_its_cell_alone(tmp_path: Path) -> None:
    cells = small_cells(tmp_path, 2)
    cells[0].folder.mkdir(parents=True)
    (cells[0].folder / "result.json").write_text("{}")
    outcomes = run_all(cells, InThisProcess)
    assert "result.json" in (outcomes[0].error or "")
    assert outcomes[1].error is None


def test_a_lock_that_cannot_be_had_is_an_error_of_its_cell_alone(tmp_path: Path) -> None:
    cells = small_cells(tmp_path, 2)
    (cells[0].folder / "run.lock").mkdir(parents=True)
    outcomes = run_all(cells, InThisProcess)
    assert "cannot lock" in (outcomes[0].error or "")
    assert outcomes[1].error is None


def test_a_process_that_dies_idle_is_replaced(tmp_path: Path) -> None:
    cells = small_cells(tmp_path, 2)
    with closing(ProcessPool(1)) as pool:
        pool.submit(cells[0]).result()
        (executor,) = pool.last_futures
        (worker,) = executor._processes.values()
        worker.kill()
        worker.join()
        for _ in range(500):  # until the executor has noticed
            if executor._broken:
                break
            time.sleep(0.01)
        pool.submit(cells[1]).result()
        assert executor not in pool.last_futures
    assert [(cell.folder / "result.json").is_file() for cell in cells] == [True, True]


@pytest.mark.slow
def test_a_process_that_dies_takes_only_its_own_cell_with_it(tmp_path: Path) -> None:
    tables = {**SMALL, "run": {"rounds": 160}, "train": {"batch": 16}}
    cells = list(plan_comparison(Experiment.parse(tables), ["fedavg"], range(5), tmp_path, None).values())
    pools: list[ProcessPool] = []
    killed: list[int] = []

    def pool() -> ProcessPool:
        pools.append(ProcessPool(2))
        return pools[0]

    def watch(progress: GridProgress) -> None:
        if (
            not killed
            and len(progress.running) == 2
            and all(RunFiles(spec.folder).last_round() for spec in progress.running)
        ):
            process = next(iter(next(iter(pools[0].last_futures))._processes.values()))
            killed.append(process.pid or 0)
            process.kill()

    outcomes = run_all(cells, pool, watch)
    assert killed
    failed = [outcome for outcome in outcomes if outcome.error]
    assert ["ended unexpectedly" in str(outcome.error) for outcome in failed] == [True]
    assert sum(outcome.result is not None for outcome in outcomes) == 4
    again = run_all(cells, InThisProcess)
    assert [outcome.error for outcome in again] == [None] * 5


def study(folder: Path, workers: int) -> tuple[str, ...]:
    return ("study", "iid", "--scale=smoke", f"--workers={workers}", f"--out={folder}", "--format=json")


def tables(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}


@pytest.mark.slow
def test_two_studies_at_once_do_each_run_once_and_end_with_the_same_table(
    tmp_path: Path, start_celm: Start
) -> None:
    out = tmp_path / "shared"
    both = [start_celm(*study(out, workers=1)) for _ in range(2)]
    printed = [process.communicate(timeout=240) for process in both]
    assert [process.returncode for process in both] == [0, 0], printed
    assert printed[0][0] == printed[1][0]
    assert json.loads(printed[0][0])["errors"] == {}
    assert [starts(cell) for cell in sorted((out / "cells").iterdir())] == [1] * 10
    assert not list(out.rglob("*.part"))
    together = tables(out)
    assert start_celm(*study(tmp_path / "alone", workers=2)).wait(timeout=240) == 0
    assert together == tables(tmp_path / "alone")


@pytest.mark.slow
def test_a_study_killed_between_two_workers_goes_on_and_no_finished_run_is_touched(
    tmp_path: Path, start_celm: Start
) -> None:
    out = tmp_path / "killed"
    doomed = start_celm(*study(out, workers=2))
    while len(results := list(out.glob("cells/*/result.json"))) < 4:
        assert doomed.poll() is None
        time.sleep(0.02)
    os.kill(doomed.pid, signal.SIGKILL)
    doomed.wait()
    wait_for_end(doomed.pid)
    finished = [path.parent for path in out.glob("cells/*/result.json")]
    assert 4 <= len(results) <= len(finished) < 10

    def stamps() -> dict[Path, tuple[int, bytes]]:
        files = [
            path
            for cell in finished
            for path in cell.rglob("*")
            if path.is_file() and path.name != "run.lock"
        ]
        return {path: (path.stat().st_mtime_ns, path.read_bytes()) for path in files}

    before = stamps()
    assert start_celm(*study(out, workers=2)).wait(timeout=240) == 0
    assert stamps() == before
    assert start_celm(*study(tmp_path / "whole", workers=2)).wait(timeout=240) == 0
    assert tables(out) == tables(tmp_path / "whole")


@pytest.mark.slow
def test_runs_of_a_process_that_died_are_taken_over_from_their_last_round(
    tmp_path: Path, start_celm: Start
) -> None:
    def compare(folder: Path) -> Any:
        return start_celm("compare", "--methods=fedavg", *LONG, "--workers=2", f"--out={folder}")

    out = tmp_path / "shared"
    first = compare(out)
    while [path.read_bytes().count(b"\n") >= 3 for path in out.glob("*/rounds.jsonl")] != [True]:
        assert first.poll() is None
        time.sleep(0.02)
    os.killpg(first.pid, signal.SIGSTOP)  # so that it has not ended before the second looks
    second = compare(out)
    line = second.stderr.readline()
    assert line.startswith("waiting for runs in another process: digits, fedavg, seed 1")
    os.kill(first.pid, signal.SIGKILL)
    os.killpg(first.pid, signal.SIGCONT)
    _, said = second.communicate(timeout=240)
    assert second.returncode == 0, said
    assert [starts(cell) for cell in out.iterdir() if cell.is_dir()] == [2]
    assert compare(tmp_path / "whole").wait(timeout=240) == 0
    assert tables(out) == tables(tmp_path / "whole")
    for path in (tmp_path / "whole").rglob("rounds.jsonl"):
        assert path.read_bytes() == (out / path.relative_to(tmp_path / "whole")).read_bytes()


def wait_for_end(group: int) -> None:
    deadline = time.monotonic() + 10
    while time.monotonic() < deadline:
        try:
            os.killpg(group, 0)
        except ProcessLookupError:
            return
        time.sleep(0.05)
    raise AssertionError("a process is left")
