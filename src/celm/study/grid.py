"""Many runs at once, each in a folder of its own, so that a killed grid goes on and several processes may share one.

Runs are independent and each is a function of its settings, so neither the order nor the number of processes
matters. Who runs a cell holds the lock of its folder. A cell that another process holds is left until there is
nothing else to do, then waited for; should that process die, its lock ends and the cell goes on here from its last
round. A cell that fails is recorded with its error, and the rest goes on.
"""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, BrokenExecutor, Future, wait
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from celm.base.errors import CelmError
from celm.base.files import explained
from celm.federation.experiment import Experiment
from celm.federation.folder import Folder, InUseError

POLL_SECONDS = 0.5
LONGEST_LINE = 2**22
"""Bytes looked at for the last round on record: enough for some thousands of clients."""


@dataclass(frozen=True)
class Cell:
    """One run of a grid: its settings, every one of them set, its folder, and where it stands in the table."""

    experiment: Experiment
    place: Path
    row: str
    method: str

    @property
    def rounds(self) -> int:
        return self.experiment.run.rounds or 0

    @property
    def label(self) -> str:
        return f"{self.row}, {self.method}, seed {self.experiment.run.seed}"


Key = tuple[str, str, int]
"""What a cell of a study is known by: row label, method label, seed."""


@dataclass(frozen=True)
class Outcome:
    cell: Cell
    result: dict[str, Any] | None
    error: str | None = None


@dataclass(frozen=True)
class Progress:
    """Where a grid is."""

    cells: Sequence[Cell]
    ended: Sequence[Outcome]
    """Those that were done before first, then in the order they ended."""
    running: Sequence[Cell]
    elsewhere: Sequence[Cell]
    """In use by other processes."""


Watch = Callable[[Progress], None]
"""Called now and then, and at the end."""


class Pool(Protocol):
    """Where cells run. A future ends with nothing or with the error of its cell."""

    size: int
    """Cells at a time."""

    def submit(self, cell: Cell) -> Future[None]: ...

    def close(self) -> None:
        """Stop at once whatever still runs."""


def run_grid(cells: Sequence[Cell], pool: Callable[[], Pool], watch: Watch | None = None) -> list[Outcome]:
    """Do what is left of every cell; outcomes come in the order of the cells. The pool is made only if needed."""
    for place, count in Counter(cell.place for cell in cells).items():
        if count > 1:
            raise CelmError(f"{count} runs would share the folder {place}", "give them names that differ")
    for cell in cells:
        check_place(cell)
    ended = {cell.place: outcome for cell in cells if (outcome := settled(cell))}
    waiting = [cell for cell in cells if cell.place not in ended]
    if waiting:
        with closing(pool()) as crew:
            for parent in dict.fromkeys(cell.place.parent for cell in waiting):
                with explained(parent, "create"):
                    parent.mkdir(parents=True, exist_ok=True)
            ended |= carry_through(cells, ended, waiting, crew, watch)
    return [ended[cell.place] for cell in cells]


def carry_through(
    cells: Sequence[Cell],
    before: dict[Path, Outcome],
    waiting: list[Cell],
    pool: Pool,
    watch: Watch | None,
) -> dict[Path, Outcome]:
    ended = dict(before)
    running: dict[Future[None], Cell] = {}
    elsewhere: list[Cell] = []
    while True:
        for future in [future for future in running if future.done()]:
            cell = running.pop(future)
            if isinstance(future.exception(), InUseError):
                elsewhere.append(cell)  # another process was faster
            else:
                ended[cell.place] = Outcome(cell, *result_or_error(cell, future))
        while waiting and len(running) < pool.size:
            cell = waiting.pop(0)
            try:
                taken = Folder(cell.place).in_use()
            except CelmError as error:  # its lock cannot be had: an error of that cell alone
                ended[cell.place] = Outcome(cell, None, str(error))
                continue
            if taken:
                elsewhere.append(cell)
            elif outcome := settled(cell):
                ended[cell.place] = outcome
            else:
                running[pool.submit(cell)] = cell
        if watch:
            watch(Progress(cells, list(ended.values()), list(running.values()), elsewhere))
        if not running and not elsewhere:
            return ended
        if running:
            wait(running, POLL_SECONDS, FIRST_COMPLETED)
        else:
            time.sleep(POLL_SECONDS)
        if len(running) < pool.size:  # so nothing waits but what others hold: look at it again
            waiting, elsewhere = elsewhere, []


def result_or_error(cell: Cell, future: Future[None]) -> tuple[dict[str, Any] | None, str | None]:
    error = future.exception()
    if isinstance(error, BrokenExecutor):
        return None, "its process ended unexpectedly (out of memory? try fewer: --workers 1)"
    if error is not None:
        return None, told(error)
    outcome = settled(cell)
    return (outcome.result, outcome.error) if outcome else (None, "it ended without a result")


def told(error: BaseException) -> str:
    return str(error) if isinstance(error, CelmError) else f"{type(error).__name__}: {error}"


def run_cell(cell: Cell) -> None:
    from celm.engines.launch import go_on

    with held(cell) as folder:
        go_on(folder, workers=0)


@contextmanager
def held(cell: Cell) -> Iterator[Folder]:
    """The cell's folder, locked, with its settings in it. What is made in it is made under the lock."""
    with explained(cell.place, "create"):
        cell.place.mkdir(parents=True, exist_ok=True)
    with Folder(cell.place).locked():
        if (cell.place / "settings.toml").exists():
            yield Folder.open(cell.place)
        else:
            yield Folder.create(cell.place, cell.experiment, claimed=True)


def check_place(cell: Cell) -> None:
    """A folder that is there already must hold this experiment and no other."""
    try:
        found = settings_there(cell)
    except CelmError:
        return  # damaged: an error of that cell alone, which `settled` tells
    if found is None:
        return
    there, here = found.tables(), cell.experiment.tables()
    for tables in (there, here):
        tables["run"].pop("workers", None)
    if there != here:
        table = next(name for name in {**there, **here} if there.get(name) != here.get(name))
        raise CelmError(f"{cell.place} holds a run with other settings ({table})", "choose another --out")


def settings_there(cell: Cell) -> Experiment | None:
    """What the folder holds; None where it is not begun, or was given up by another process this moment."""
    try:
        return Folder(cell.place).settings()
    except CelmError:
        if (cell.place / "settings.toml").exists():
            raise
        return None


def finished(cell: Cell) -> dict[str, Any] | None:
    return Folder(cell.place).result() if (cell.place / "result.json").exists() else None


def settled(cell: Cell) -> Outcome | None:
    """What a cell came to, if it needs no more work; damaged files are an error of that cell alone."""
    try:
        settings_there(cell)
        found = finished(cell)
    except CelmError as error:
        return Outcome(cell, None, with_remedy(error, cell))
    return None if found is None else Outcome(cell, found)


def with_remedy(error: BaseException, cell: Cell) -> str:
    """An error that lies in the cell's files: what to do about it, too, where it does not say so or cannot be read."""
    if getattr(error, "hint", None) or isinstance(error.__cause__, OSError):
        return told(error)
    return f"{told(error)} (delete {cell.place} to have it run again)"


def last_round(cell: Cell) -> dict[str, Any]:
    """The last round on record; empty where there is none, or none that can be read while it is being written."""
    try:
        with (cell.place / "rounds.jsonl").open("rb") as file:
            file.seek(max(0, file.seek(0, 2) - LONGEST_LINE))
            lines = file.read().split(b"\n")
        record = json.loads(lines[-2])
    except (OSError, ValueError, IndexError):
        return {}
    return record if isinstance(record, dict) else {}


def rounds_done(cell: Cell) -> int:
    number = last_round(cell).get("round")
    return max(0, min(cell.rounds, number)) if isinstance(number, int) else 0
