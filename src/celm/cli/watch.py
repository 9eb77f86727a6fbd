"""`celm watch`: a live view of a run, a study or a federation."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from celm.base.errors import CelmError
from celm.cli.output import printable, stdout_console
from celm.cli.progress_view import EtaEstimator

if TYPE_CHECKING:
    from celm.operations.snapshot import RoundsSnapshot, StudySnapshot
    from celm.records.metric_series import MetricSeries

_SPARKS = "▁▂▃▄▅▆▇█"
_FRAME_LINES = 9
"""Lines of the view beside its rows."""
_WEIGHT_BAR = 12


def watch_command(
    folder: Annotated[
        Path,
        typer.Argument(help="Folder of a run, study or comparison, or the state folder of a federation."),
    ],
    interval: Annotated[
        float, typer.Option(min=0.2, max=3600, help="Seconds between two looks at the files.")
    ] = 2.0,
    once: Annotated[bool, typer.Option("--once", help="Print the present state and end.")] = False,
) -> None:
    """Watch rounds, accuracy, weights, flags and the time left.

    Only records are read, and nothing is written, so the server may be
    running. It ends when the last round has ended, or with Ctrl-C. If the
    output is not a terminal, the present state is printed once.

    [bold]Examples[/bold]

      celm watch /var/lib/celm/consortium
      celm watch runs/digits-celm-seed42 --interval 10
      celm watch studies/maverick --once
    """
    from celm.operations.snapshot import content_mark, snapshot_folder

    console = stdout_console()
    snapshot, eta = snapshot_folder(folder), EtaEstimator()
    if once or not console.is_terminal:
        console.print(render(snapshot, eta, console, limit_rows=not once))
        return
    with Live(console=console, screen=False, auto_refresh=False, vertical_overflow="crop") as live:
        mark, problem = content_mark(folder), ""
        while True:
            frame = render(snapshot, eta, console)
            live.update(Group(frame, Text(problem, style="red")) if problem else frame, refresh=True)
            if snapshot.is_finished:
                return
            time.sleep(interval)
            try:
                if problem or content_mark(folder) != mark:
                    mark, snapshot, problem = content_mark(folder), snapshot_folder(folder), ""
            except CelmError as error:  # perhaps between two writes; it is read again
                problem = printable(str(error))


def render(
    snapshot: RoundsSnapshot | StudySnapshot, eta: EtaEstimator, console: Console, limit_rows: bool = True
) -> RenderableType:
    """Return the view for the width and height of the console."""
    from celm.operations.snapshot import StudySnapshot

    rows = max(3, console.height - _FRAME_LINES) if limit_rows else 10**6
    if isinstance(snapshot, StudySnapshot):
        return _render_study(snapshot, eta, rows)
    return _render_rounds(snapshot, eta, rows, console.width)


def _render_rounds(snapshot: RoundsSnapshot, eta: EtaEstimator, max_rows: int, width: int) -> Group:
    title = Text(printable(str(snapshot.folder)), style="bold", no_wrap=True, overflow="ellipsis")
    if snapshot.last_time is None:
        return Group(title, Text("no round has ended yet"))
    time_left = eta.time_left(snapshot.done, snapshot.planned) if snapshot.planned else ""
    if snapshot.time_left is not None:
        time_left = str(snapshot.time_left).partition(".")[0]
    status = f"round {snapshot.done}{f' of {snapshot.planned}' if snapshot.planned else ''}"
    if time_left:
        status += f", {time_left} left"
    status += f", last ended {snapshot.last_time:%Y-%m-%d %H:%M:%S} UTC"
    lines: list[RenderableType] = [title, _bar_line(snapshot.done, snapshot.planned, status)]
    if snapshot.accuracy is not None:
        lines.append(_accuracy_line(snapshot.accuracy, width))
    lines += [
        Text(printable(text), style="bold red", no_wrap=True, overflow="ellipsis")
        for text in snapshot.alarms[:3]
    ]
    lines.append(_client_table(snapshot, max_rows))
    more = len(snapshot.clients) - max_rows
    return Group(*lines, *([Text(f"and {more} more", style="dim")] if more > 0 else []))


def _client_table(snapshot: RoundsSnapshot, max_rows: int) -> Table:
    table = Table(header_style="bold", box=None, expand=True, pad_edge=False)
    table.add_column("client", no_wrap=True, overflow="ellipsis", ratio=2)
    table.add_column("weight", no_wrap=True, width=_WEIGHT_BAR + 8)
    table.add_column("earned", justify="right", no_wrap=True)
    table.add_column("answered", justify="right", no_wrap=True)
    table.add_column("flags", no_wrap=True, overflow="ellipsis", ratio=5)
    heaviest = max((client.weight or 0.0 for client in snapshot.clients), default=0.0)
    for client in snapshot.clients[:max_rows]:
        weight = client.weight or 0.0
        filled = "█" * round(_WEIGHT_BAR * weight / heaviest) if heaviest else ""
        table.add_row(
            Text(printable(client.name), style="red" if client.reasons else ""),
            Text.assemble(
                f"{100 * weight:5.1f} % " if client.weight is not None else "      – ", (filled, "#58a6ff")
            ),
            "–" if client.earned is None else f"{100 * client.earned:.1f} %",
            f"{client.rounds_answered} of {client.rounds_asked}",
            Text(printable(client.reasons), style="red"),
        )
    return table


def _render_study(snapshot: StudySnapshot, eta: EtaEstimator, max_rows: int) -> Group:
    ended = [run for run in snapshot.runs if run.state in ("finished", "failed")]
    time_left = eta.time_left(
        sum(run.planned if run in ended else run.done for run in snapshot.runs),
        sum(run.planned for run in snapshot.runs),
    )
    status = f"{len(ended)} of {len(snapshot.runs)} runs{f', {time_left} left' if time_left else ''}"
    title = Text(printable(str(snapshot.folder)), style="bold", no_wrap=True, overflow="ellipsis")
    table = Table(header_style="bold", box=None, expand=True, pad_edge=False)
    table.add_column("run", no_wrap=True, overflow="ellipsis", ratio=1)
    table.add_column("state", no_wrap=True)
    for heading in ("round", "accuracy"):
        table.add_column(heading, justify="right", no_wrap=True)
    order = ("started", "failed", "waiting", "finished")
    runs = sorted(snapshot.runs, key=lambda run: order.index(run.state))
    for run in runs[:max_rows]:
        table.add_row(
            Text(printable(run.name)),
            Text(run.state, style="red" if run.state == "failed" else ""),
            f"{run.done}{f' of {run.planned}' if run.planned else ''}",
            "–" if run.accuracy is None else f"{100 * run.accuracy:.2f} %",
        )
    more = len(runs) - max_rows
    last = [Text(f"and {more} more", style="dim")] if more > 0 else []
    return Group(title, _bar_line(len(ended), len(runs), status), table, *last)


def _bar_line(done: int, total: int, status: str) -> Table:
    line = Table.grid(padding=(0, 1), expand=True)
    line.add_column(width=20)
    line.add_column(no_wrap=True, overflow="ellipsis", ratio=1)
    line.add_row(ProgressBar(total=total or 1, completed=min(done, total), width=20), status)
    return line


def _accuracy_line(series: MetricSeries, width: int) -> Text:
    """Return the last accuracy, and the last ones as a row of bars from 0 to 1 (or 100)."""
    from celm.metrics.collapse import full_accuracy

    full = full_accuracy(series.values.values())
    values = [value / full for value in series.values.values()]
    bars = "".join(
        _SPARKS[min(7, max(0, int(8 * value)))] for value in values[-max(10, min(60, width - 40)) :]
    )
    return Text.assemble(
        f"accuracy {100 * values[-1]:.2f} % ", (bars, "#58a6ff"), f" best {100 * max(values):.2f} %"
    )
