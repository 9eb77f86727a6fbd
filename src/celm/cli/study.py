"""`celm study`: a table of the paper, from declarations, resumable."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.text import Text

from celm.base.errors import CelmError
from celm.cli import options
from celm.cli.grid_view import grid_view, with_logs
from celm.cli.output import Format, console, print_json, printable, warn
from celm.cli.tables import comparison_table

if TYPE_CHECKING:
    from celm.study.processes import Processes
    from celm.study.ray_pool import RayPool


class Pool(StrEnum):
    local = "local"
    ray = "ray"


def command(
    name: Annotated[
        str, typer.Argument(help="A study's name (`celm list studies`), or the .toml file of your own.")
    ],
    scale: Annotated[
        str, typer.Option(help="paper, quick (real data, fewer rounds) or smoke (seconds).")
    ] = "paper",
    only: Annotated[
        str, typer.Option(help="A part, as in 'dataset=fashion_mnist split=pls method=celm,fedavg'.")
    ] = "",
    workers: Annotated[int | None, typer.Option(min=1, help="Runs at a time; one a core by default.")] = None,
    pool: Annotated[
        Pool, typer.Option(help="Where the runs go: this machine, or a Ray cluster.")
    ] = Pool.local,
    address: options.Address = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only say what would be run, and how long.")
    ] = False,
    out: Annotated[Path | None, typer.Option(help="Folder; studies/NAME-SCALE by default.")] = None,
    log: options.Logs = None,
    format: Annotated[Format, typer.Option(help="text for people, json for machines.")] = Format.text,
) -> None:
    """Fill a table of the paper: ours, the paper's and the difference.

    Killed or stopped, the same command goes on with what is missing; a run in the middle goes on from its last round.
    With --only, the table shows this part and what the folder holds already.
    Started several times at once, on one machine or on a file system that many share, the processes share the work.

    With --pool ray the runs go to a Ray cluster, whose nodes need celm and the datasets but no common file system:
    a run's folder travels there and comes home every few seconds.

    [bold]Examples[/bold]

      celm study main --scale smoke

      celm study maverick --only dataset=fashion_mnist --workers 2

      celm study main --pool ray --address auto

      celm study main --dry-run
    """
    from celm.report.page import duration
    from celm.study.costs import expected_cost
    from celm.study.declaration import load_study
    from celm.study.grid import run_grid
    from celm.study.running import study_cells
    from celm.study.scales import Scale
    from celm.study.writing import Writing

    study, targets = load_study(name), options.log_targets(log)
    if address is not None and pool is Pool.local:
        raise CelmError("--address goes with --pool ray")
    if scale not in list(Scale):
        raise CelmError(f"--scale: '{scale}' is none of {', '.join(Scale)}")
    size = Scale(scale)
    place = out or Path("studies") / f"{study.name}-{scale}"
    cells = study_cells(study, size, place, only)
    if dry_run:
        cost = expected_cost(list(cells.values()))
        if format is Format.json:
            print_json({"study": study.name, "scale": scale, **cost})
        else:
            damaged = f", {cost['damaged']} damaged" if cost["damaged"] else ""
            title, done = printable(study.title + size.note), f"{cost['done']} of them done{damaged}"
            console().print(Text(f"{title}: {cost['runs']} runs, {done}"))
            console().print(f"about {duration(3600 * cost['hours'])} on one core")
        complain_of(cost["errors"], len(cells), "cannot be run")
        return
    writing = Writing(study, name, size, place, only, cells)
    try:
        with grid_view(study.name, quiet=format is Format.json) as watch:
            results = run_grid(
                list(cells.values()),
                lambda: make_pool(pool, workers, address),
                writing.watching(with_logs(watch, targets)),
            )
    except KeyboardInterrupt:
        writing.stop(warn)
        raise
    written = writing.write(dict(zip(cells, results, strict=True)))
    table, times = written.table, written.times
    if format is Format.json:
        print_json(
            {
                "folder": str(place.resolve()),
                "study": study.name,
                "scale": scale,
                **table.to_json(),
                **({"times": times.to_json()["cells"]} if times.rows else {}),
                "errors": written.errors,
            }
        )
    else:
        console().print(comparison_table(table, console().width))
        if times.rows:
            console().print(comparison_table(times, console().width))
        if study.about:
            console().print(Text(printable(" ".join(study.about.split())), style="dim"))
        console().print(Text(f"folder: {printable(str(place))}"), soft_wrap=True)
    complain_of(written.failed, len(cells), "failed")


def complain_of(errors: Mapping[str, str], runs: int, what: str) -> None:
    """An error that names the first of them, if there are any."""
    if errors:
        label, error = next(iter(errors.items()))
        raise CelmError(f"{len(errors)} of {runs} runs {what}, the first {label}: {error}")


def make_pool(kind: Pool, size: int | None, address: str | None) -> Processes | RayPool:
    if kind is Pool.ray:
        from celm.study.ray_pool import RayPool

        return RayPool(size, address)
    from celm.study.processes import Processes

    return Processes(size)
