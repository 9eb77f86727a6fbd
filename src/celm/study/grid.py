"""Many runs at once: one process a core, each run in a folder of its own, so that a killed grid goes on.

Runs are independent and each is a function of its settings, so neither the order nor the number of processes
matters. A cell that fails is recorded with its error, and the rest goes on.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from celm.base.errors import CelmError
from celm.engines.workers import die_with_parent
from celm.federation.experiment import Experiment
from celm.federation.folder import Folder

Watch = Callable[[int, int, int, int], None]
"""Called now and then with cells done, cells in all, rounds done, rounds in all."""
POLL_SECONDS = 0.5


@dataclass(frozen=True)
class Cell:
    """One run of a grid: its settings, every one of them set, and its folder."""

    experiment: Experiment
    place: Path

    @property
    def rounds(self) -> int:
        return self.experiment.run.rounds or 0


Key = tuple[str, str, int]
"""What a cell of a study is known by: row label, method label, seed."""


@dataclass(frozen=True)
class Outcome:
    cell: Cell
    result: dict[str, Any] | None
    error: str | None = None


def run_grid(cells: Sequence[Cell], processes: int, watch: Watch | None = None) -> list[Outcome]:
    """Do what is left of every cell; outcomes come in the order of the cells."""
    for cell in cells:
        check_place(cell)
    waiting = [cell for cell in cells if finished(cell) is None]
    errors: dict[Path, str] = {}
    if waiting:
        context = multiprocessing.get_context("spawn")
        pool = ProcessPoolExecutor(
            min(processes, len(waiting)), mp_context=context, initializer=prepare, initargs=(os.getpid(),)
        )
        try:
            futures = {pool.submit(run_cell, cell): cell for cell in waiting}
            follow(futures, cells, watch)
        except BaseException:
            for process in list((pool._processes or {}).values()):
                process.kill()
            pool.shutdown(wait=False, cancel_futures=True)
            raise
        pool.shutdown()
        errors = {cell.place: error for future, cell in futures.items() if (error := error_of(future))}
    return [Outcome(cell, finished(cell), errors.get(cell.place)) for cell in cells]


def follow(futures: dict[Future[None], Cell], cells: Sequence[Cell], watch: Watch | None) -> None:
    total = sum(cell.rounds for cell in cells)
    while True:
        over = all(future.done() for future in futures)
        if watch:
            done = sum(finished(cell) is not None for cell in cells)
            watch(done, len(cells), sum(rounds_done(cell) for cell in cells), total)
        if over:
            return
        time.sleep(POLL_SECONDS)


def prepare(parent: int) -> None:
    die_with_parent(parent)
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def run_cell(cell: Cell) -> None:
    from celm.engines.launch import carry_out

    started = (cell.place / "settings.toml").exists()
    folder = Folder.open(cell.place) if started else Folder.create(cell.place, cell.experiment)
    carry_out(folder, workers=0)


def check_place(cell: Cell) -> None:
    """A folder that is there already must hold this experiment and no other."""
    if not (cell.place / "settings.toml").exists():
        return
    there, here = Folder.open(cell.place).settings().tables(), cell.experiment.tables()
    for tables in (there, here):
        tables["run"].pop("workers", None)
    if there != here:
        table = next(name for name in {**there, **here} if there.get(name) != here.get(name))
        raise CelmError(f"{cell.place} holds a run with other settings ({table})", "choose another --out")


def finished(cell: Cell) -> dict[str, Any] | None:
    return Folder(cell.place).result() if (cell.place / "result.json").exists() else None


def rounds_done(cell: Cell) -> int:
    try:
        with (cell.place / "rounds.jsonl").open("rb") as file:
            return min(cell.rounds, sum(1 for _ in file))
    except OSError:
        return 0


def error_of(future: Future[None]) -> str | None:
    if future.cancelled():
        return "not run"
    error = future.exception()
    if error is None:
        return None
    if isinstance(error, BrokenProcessPool):
        return "a process ended unexpectedly (out of memory?)"
    return str(error) if isinstance(error, CelmError) else f"{type(error).__name__}: {error}"
