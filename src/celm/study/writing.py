"""What a study has come to so far, written into its folder: table, times, errors, and the truth where it is asked for.

It is written when the study ends or is interrupted and now and then before, so that whoever is killed leaves a table
of what was done. Several processes may share a folder: each reads what is there and writes under one lock, so that
the last to write has seen what the others finished.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from filelock import FileLock, Timeout

from celm.base.errors import CelmError
from celm.base.files import dump_json, explained, write_text
from celm.report.reading import Standing
from celm.study.declaration import Study
from celm.study.grid import Cell, Key, Outcome, Progress, Watch
from celm.study.ground_truth import save_truth
from celm.study.record import record_study
from celm.study.running import Measured, measure_runs, study_cells, study_table, with_earlier
from celm.study.scales import Scale
from celm.study.table import Table, save_table

PAUSE_SECONDS = 60.0
"""Between two writings while the study runs."""
PATIENCE_SECONDS = 2.0
"""With others that write, while the study runs or is stopped."""


@dataclass(frozen=True)
class Written:
    table: Table
    times: Table
    """What a clock measured; without rows where nothing was asked for."""
    errors: Mapping[str, str]
    """As errors.json has them: row, method and seed to what went wrong."""
    failed: Mapping[str, str]
    """Of what was asked for now: a run's label to its error."""


class Writing:
    """The folder of a study while it runs. `name` is what the study was asked for by: its own name or a file."""

    def __init__(
        self, study: Study, name: str, scale: Scale, place: Path, only: str, cells: Mapping[Key, Cell]
    ) -> None:
        self.study, self.name, self.scale, self.place, self.only = study, name, scale, place, only
        self.cells = cells
        self.whole = study_cells(study, scale, place) if only else cells
        """Also those that were not asked for."""
        self.keys = {cell.place: key for key, cell in cells.items()}
        self.ended: dict[Key, Outcome] = {}
        self.figures: Measured = {}
        self.written = (0, time.monotonic())
        """How many had ended, and when."""

    def watching(self, watch: Watch) -> Watch:
        """Also keep what has ended, and write it now and then."""

        def both(progress: Progress) -> None:
            watch(progress)
            self.ended = {self.keys[outcome.cell.place]: outcome for outcome in progress.ended}
            count, when = self.written
            if len(self.ended) > count and time.monotonic() - when > PAUSE_SECONDS:
                self.written = (count, time.monotonic())
                with suppress(CelmError):  # told at the end, if it is so still
                    self.write(self.ended, PATIENCE_SECONDS)

        return both

    def write(self, ended: Mapping[Key, Outcome], patience: float = -1) -> Written:
        """What has ended, and what the folder holds of other parts of the study.

        `patience` is for how many seconds to wait while another process writes; by default for as long as it takes.
        """
        with self.locked(patience):
            held = with_earlier(self.study, self.whole, ended)
            outcomes, self.figures = measure_runs(self.study, held, self.figures)
            table, times = (
                study_table(self.study, outcomes, self.figures, self.scale, wall_clock)
                for wall_clock in (False, True)
            )
            save_table(table, self.place)
            if times.rows:
                save_table(times, self.place, "times")
            whole = self.whole.values()
            record_study(self.study, self.name, self.scale, self.place, whole, self.only)
            names = {
                (row, method, seed): Standing(row=row, method=method, seed=seed).key
                for row, method, seed in outcomes
            }
            errors = {names[key]: outcome.error for key, outcome in outcomes.items() if outcome.error}
            save_errors(self.place / "errors.json", errors, set(names.values()))
            if self.study.ground_truth:
                save_truth(self.study, outcomes, self.place)
        self.written = (len(ended), time.monotonic())
        failed = {
            cell.label: errors[names[key]] for key, cell in self.cells.items() if names.get(key) in errors
        }
        return Written(table, times, errors, failed)

    def stop(self, warn: Callable[[str], None]) -> None:
        """What has ended when the study is interrupted; that it cannot be written is no reason to stay."""
        try:
            if self.ended:
                self.write(self.ended, PATIENCE_SECONDS)
        except CelmError as error:
            warn(f"the table is as it was: {error}")

    @contextmanager
    def locked(self, patience: float) -> Iterator[None]:
        with explained(self.place, "create"):
            self.place.mkdir(parents=True, exist_ok=True)
        lock = FileLock(self.place / "study.lock")
        with explained(self.place, "lock"):
            try:
                lock.acquire(timeout=patience)
            except Timeout as error:
                raise CelmError(f"{self.place} is being written by another process") from error
        try:
            yield
        finally:
            lock.release()


def save_errors(path: Path, errors: Mapping[str, str], known: Collection[str]) -> None:
    """Beside those of earlier commands whose runs are not done yet."""
    try:
        before = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        before = {}
    kept = before.items() if isinstance(before, dict) else ()
    earlier = {name: text for name, text in kept if name not in known}
    write_text(path, dump_json({**earlier, **errors}, indent=2) + "\n")
