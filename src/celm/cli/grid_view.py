"""What is seen of a grid while it runs: a live view in a terminal, a line a run elsewhere, nothing if so asked."""

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

from celm.cli.output import notes, printable, warn

if TYPE_CHECKING:
    from celm.report.loggers import Target
    from celm.study.grid import Cell, Outcome, Watch
    from celm.study.grid import Progress as Standing

MOST_SHOWN = 12
"""Running cells in the view; more are only counted."""


@contextmanager
def grid_view(what: str, quiet: bool) -> Iterator[Watch]:
    """Who watches the grid. Interrupted, it says how to go on."""
    try:
        if quiet:
            yield lambda standing: None
        elif notes.is_terminal:
            with Live(console=notes, transient=True, auto_refresh=False) as live:
                screen = Screen(what)
                yield lambda standing: live.update(screen.drawn(standing), refresh=True)
        else:
            yield Lines().tell
    except KeyboardInterrupt:
        if not quiet:
            notes.print("\nstopped; the same command goes on with what is missing")
        raise


def with_logs(watch: Watch, targets: Sequence[Target]) -> Watch:
    """Also log every run that this process brings to its end, when it does."""
    from celm.federation.folder import Folder
    from celm.federation.run import Run
    from celm.report.loggers import tell

    ours: set[Path] = set()

    def both(standing: Standing) -> None:
        watch(standing)
        ended = {outcome.cell.place for outcome in standing.ended if outcome.result}
        for place in sorted(ours & ended):
            tell(Run.read(Folder(place)), targets, warn)
        ours.difference_update(ended)
        ours.update(cell.place for cell in standing.running)
        ours.difference_update(cell.place for cell in standing.elsewhere)

    return both if targets else watch


class Screen:
    """A line for each cell that runs, what is waited for, and a bar over the rounds of all."""

    def __init__(self, what: str) -> None:
        name = TextColumn("{task.description}", markup=False)  # a study's own, or that of its file
        columns = (name, BarColumn(), TextColumn("{task.fields[told]}"))
        self.bar = Progress(*columns, TimeElapsedColumn(), console=notes)
        self.task = self.bar.add_task(printable(what), total=None, told="")
        self.clock = Clock()

    def drawn(self, standing: Standing) -> Group:
        from celm.study.grid import last_round, rounds_done

        table = Table.grid(padding=(0, 2))
        for cell in standing.running[:MOST_SHOWN]:
            accuracy = last_round(cell).get("accuracy")
            table.add_row(
                Text(printable(cell.row)),
                Text(printable(cell.method), style="bold"),
                f"seed {cell.experiment.run.seed}",
                f"round {rounds_done(cell)} of {cell.rounds}",
                f"accuracy {100 * accuracy:.2f} %" if isinstance(accuracy, float) else "",
            )
        lines = [Text(printable(line), style="dim") for line in self.remarks(standing)]
        done, total = rounds(standing)
        left = self.clock.left(done, total)
        told = f"{len(standing.ended)} of {len(standing.cells)} runs{f', {left} left' if left else ''}"
        self.bar.update(self.task, completed=done, total=total, told=told)
        return Group(table, *lines, self.bar)

    def remarks(self, standing: Standing) -> Iterator[str]:
        if len(standing.running) > MOST_SHOWN:
            yield f"and {len(standing.running) - MOST_SHOWN} more"
        if standing.elsewhere:
            yield waited_for(standing)
        failed = [outcome.cell for outcome in standing.ended if outcome.error]
        if failed:
            yield f"failed: {labels(failed)}"


class Lines:
    """One line for each run that ends, and one when there is nothing left but to wait for others."""

    def __init__(self) -> None:
        self.told: int | None = None
        self.waiting = False
        self.clock = Clock()

    def tell(self, standing: Standing) -> None:
        if self.told is None:  # what was done before is one line
            self.told = len(standing.ended)
            self.clock.left(*rounds(standing))
            if self.told:
                self.say(f"{self.told} of {len(standing.cells)} runs were done before")
        for outcome in standing.ended[self.told :]:
            self.told += 1
            left = self.clock.left(*rounds(standing))
            head = f"{self.told} of {len(standing.cells)} runs{f', {left} left' if left else ''}"
            self.say(f"{head}: {outcome.cell.label}: {result_of(outcome)}")
        alone = bool(standing.elsewhere) and not standing.running
        if alone and not self.waiting:
            self.say(waited_for(standing))
        self.waiting = alone

    def say(self, line: str) -> None:
        notes.print(Text(printable(line)), soft_wrap=True)


class Clock:
    """Time left, by how fast the rounds went since it was first looked at."""

    def __init__(self) -> None:
        self.start: tuple[float, int] | None = None

    def left(self, done: int, total: int) -> str:
        now = time.monotonic()
        if self.start is None:
            self.start = (now, done)
        since, before = self.start
        if done <= before or done >= total:
            return ""
        return str(timedelta(seconds=round((now - since) * (total - done) / (done - before))))


def rounds(standing: Standing) -> tuple[int, int]:
    """Rounds done, and in all. What failed will do no more, and counts as done."""
    from celm.study.grid import rounds_done

    ended = {outcome.cell.place for outcome in standing.ended}
    done = sum(cell.rounds if cell.place in ended else rounds_done(cell) for cell in standing.cells)
    return done, sum(cell.rounds for cell in standing.cells)


def waited_for(standing: Standing) -> str:
    idle = "" if standing.running else ", waited for"
    return f"in another process{idle}: {labels([*standing.elsewhere])}"


def labels(cells: list[Cell]) -> str:
    """The first few."""
    return "; ".join([cell.label for cell in cells[:3]] + ["…"] * (len(cells) > 3))


def result_of(outcome: Outcome) -> str:
    if outcome.result is None:
        return f"failed: {outcome.error}"
    return f"accuracy {100 * outcome.result['accuracy']:.2f} %"
