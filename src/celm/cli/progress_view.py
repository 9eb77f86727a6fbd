"""Progress of a grid of runs: a live view in a terminal, one line per run elsewhere, nothing with JSON output.

The live view is not a plain `rich.progress.Progress`, because its lines differ in kind: a row for each running run,
lines about runs that fail or run in other processes, and one bar over the rounds of all runs.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Group
from rich.live import Live
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

from celm.cli.output import print_warning, printable, stderr_console

if TYPE_CHECKING:
    from celm.study.plan import RunSpec
    from celm.study.results import RunOutcome
    from celm.study.scheduler import GridProgress, ProgressCallback
    from celm.tracking import LogTarget

_MAX_SHOWN_RUNS = 12
"""Maximum number of rows in the live view; further runs are only counted."""


@contextmanager
def progress_view(title: str, quiet: bool) -> Iterator[ProgressCallback]:
    """Yield a callback that shows progress on stderr. If interrupted, print how to continue."""
    try:
        if quiet:
            yield lambda progress: None
        elif stderr_console.is_terminal:
            with Live(console=stderr_console, transient=True, auto_refresh=False) as live:
                view = LiveView(title)
                yield lambda progress: live.update(view.render(progress), refresh=True)
        else:
            yield _LineLog().update
    except KeyboardInterrupt:
        if not quiet:
            stderr_console.print("\nstopped; the same command runs what is missing")
        raise


def log_finished_runs(callback: ProgressCallback, targets: Sequence[LogTarget]) -> ProgressCallback:
    """Extend a callback: also log each run that this process finishes."""
    from celm.runs.run import Run
    from celm.runs.run_folder import RunFolder
    from celm.tracking import track_finished_run

    our_folders: set[Path] = set()

    def call_and_log(progress: GridProgress) -> None:
        callback(progress)
        finished = {outcome.spec.folder for outcome in progress.outcomes if outcome.result}
        for folder in sorted(our_folders & finished):
            track_finished_run(Run.read(RunFolder(folder)), targets, print_warning)
        our_folders.difference_update(finished)
        our_folders.update(spec.folder for spec in progress.running)
        our_folders.difference_update(spec.folder for spec in progress.locked_elsewhere)

    return call_and_log if targets else callback


class LiveView:
    """A row for each running run, lines about other runs, and a bar over the rounds of all runs."""

    def __init__(self, title: str) -> None:
        name = TextColumn("{task.description}", markup=False)  # the title may come from the user's file
        columns = (name, BarColumn(), TextColumn("{task.fields[status]}"))
        self.bar = Progress(*columns, TimeElapsedColumn(), console=stderr_console)
        self.task = self.bar.add_task(printable(title), total=None, status="")
        self.eta = EtaEstimator()

    def render(self, progress: GridProgress) -> Group:
        """Return the view of the current progress."""
        from celm.records.run_files import RunFiles
        from celm.study.results import count_rounds_done

        table = Table.grid(padding=(0, 2))
        for spec in progress.running[:_MAX_SHOWN_RUNS]:
            accuracy = RunFiles(spec.folder).last_round().get("accuracy")
            table.add_row(
                Text(printable(spec.row)),
                Text(printable(spec.method), style="bold"),
                f"seed {spec.experiment.run.seed}",
                f"round {count_rounds_done(spec)} of {spec.rounds}",
                f"accuracy {100 * accuracy:.2f} %" if isinstance(accuracy, float) else "",
            )
        lines = [Text(printable(line), style="dim") for line in self._status_lines(progress)]
        done, total = _count_rounds(progress)
        status = _runs_text(len(progress.outcomes), progress, self.eta)
        self.bar.update(self.task, completed=done, total=total, status=status)
        return Group(table, *lines, self.bar)

    def _status_lines(self, progress: GridProgress) -> Iterator[str]:
        if len(progress.running) > _MAX_SHOWN_RUNS:
            yield f"and {len(progress.running) - _MAX_SHOWN_RUNS} more"
        if progress.locked_elsewhere:
            yield _waiting_message(progress)
        failed = [outcome.spec for outcome in progress.outcomes if outcome.error]
        if failed:
            yield f"failed: {_join_labels(failed)}"


class _LineLog:
    """A line for each run that ends, and a line when only runs of other processes are left."""

    def __init__(self) -> None:
        self.num_printed: int | None = None
        self.waiting = False
        self.eta = EtaEstimator()

    def update(self, progress: GridProgress) -> None:
        if self.num_printed is None:  # runs that were finished earlier share one line
            self.num_printed = len(progress.outcomes)
            self.eta.time_left(*_count_rounds(progress))
            if self.num_printed:
                self._print_line(f"{self.num_printed} of {len(progress.specs)} runs were already done")
        for outcome in progress.outcomes[self.num_printed :]:
            self.num_printed += 1
            prefix = _runs_text(self.num_printed, progress, self.eta)
            self._print_line(f"{prefix}: {outcome.spec.label}: {_format_outcome(outcome)}")
        only_waiting = bool(progress.locked_elsewhere) and not progress.running
        if only_waiting and not self.waiting:
            self._print_line(_waiting_message(progress))
        self.waiting = only_waiting

    def _print_line(self, line: str) -> None:
        stderr_console.print(Text(printable(line)), soft_wrap=True)


class EtaEstimator:
    """Time left, from the speed of the rounds since the first call."""

    def __init__(self) -> None:
        self.start: tuple[float, int] | None = None

    def time_left(self, done: int, total: int) -> str:
        """Return the time left, or an empty text if it is unknown or zero."""
        now = time.monotonic()
        if self.start is None:
            self.start = (now, done)
        start_time, start_done = self.start
        if done <= start_done or done >= total:
            return ""
        return str(timedelta(seconds=round((now - start_time) * (total - done) / (done - start_done))))


def _count_rounds(progress: GridProgress) -> tuple[int, int]:
    """Return the number of rounds done and in all; the rounds of a failed run count as done."""
    from celm.study.results import count_rounds_done

    ended = {outcome.spec.folder for outcome in progress.outcomes}
    done = sum(spec.rounds if spec.folder in ended else count_rounds_done(spec) for spec in progress.specs)
    return done, sum(spec.rounds for spec in progress.specs)


def _runs_text(num_ended: int, progress: GridProgress, eta: EtaEstimator) -> str:
    time_left = eta.time_left(*_count_rounds(progress))
    return f"{num_ended} of {len(progress.specs)} runs{f', {time_left} left' if time_left else ''}"


def _waiting_message(progress: GridProgress) -> str:
    verb = "running" if progress.running else "waiting for runs"
    return f"{verb} in another process: {_join_labels([*progress.locked_elsewhere])}"


def _join_labels(specs: list[RunSpec]) -> str:
    """Join the labels of the first three runs."""
    return "; ".join([spec.label for spec in specs[:3]] + ["…"] * (len(specs) > 3))


def _format_outcome(outcome: RunOutcome) -> str:
    if outcome.result is None:
        return f"failed: {outcome.error}"
    return f"accuracy {100 * outcome.result.accuracy:.2f} %"
