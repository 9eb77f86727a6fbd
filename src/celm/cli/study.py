"""`celm study`: a table of the paper, from declarations, resumable."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.text import Text

from celm.base.errors import CelmError
from celm.base.files import dump_json, write_text
from celm.cli import options
from celm.cli.grid_view import grid_view, with_logs
from celm.cli.output import Format, console, print_json, printable
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
    from celm.study.ground_truth import save_truth
    from celm.study.record import record_study
    from celm.study.running import measure_runs, study_cells, study_table, with_earlier
    from celm.study.scales import Scale
    from celm.study.table import save_table

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
    with grid_view(study.name, quiet=format is Format.json) as watch:
        results = run_grid(
            list(cells.values()), lambda: make_pool(pool, workers, address), with_logs(watch, targets)
        )
    held = with_earlier(study, size, place, dict(zip(cells, results, strict=True)))
    outcomes, figures = measure_runs(study, held)
    table = study_table(study, outcomes, figures, size)
    save_table(table, place)
    record_study(study, name, size, place, only)
    times = study_table(study, outcomes, figures, size, wall_clock=True)
    if times.rows:
        save_table(times, place, "times")
    told = {key: "-".join(map(str, key)) for key in outcomes}
    errors = {told[key]: outcome.error for key, outcome in outcomes.items() if outcome.error}
    save_errors(place / "errors.json", errors, set(told.values()))
    failed = {cell.label: errors[told[key]] for key, cell in cells.items() if told[key] in errors}
    if study.ground_truth:
        save_truth(study, outcomes, place)
    if format is Format.json:
        print_json(
            {
                "folder": str(place.resolve()),
                "study": study.name,
                "scale": scale,
                **table.to_json(),
                **({"times": times.to_json()["cells"]} if times.rows else {}),
                "errors": errors,
            }
        )
    else:
        console().print(comparison_table(table, console().width))
        if times.rows:
            console().print(comparison_table(times, console().width))
        if study.about:
            console().print(Text(printable(" ".join(study.about.split())), style="dim"))
        console().print(Text(f"folder: {printable(str(place))}"), soft_wrap=True)
    complain_of(failed, len(cells), "failed")


def complain_of(errors: Mapping[str, str], runs: int, what: str) -> None:
    """An error that names the first of them, if there are any."""
    if errors:
        label, error = next(iter(errors.items()))
        raise CelmError(f"{len(errors)} of {runs} runs {what}, the first {label}: {error}")


def save_errors(path: Path, errors: Mapping[str, str], known: Collection[str]) -> None:
    """Beside those of earlier commands whose runs are not done yet."""
    try:
        before = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        before = {}
    kept = before.items() if isinstance(before, dict) else ()
    earlier = {name: text for name, text in kept if name not in known}
    write_text(path, dump_json({**earlier, **errors}, indent=2) + "\n")


def make_pool(kind: Pool, size: int | None, address: str | None) -> Processes | RayPool:
    if kind is Pool.ray:
        from celm.study.ray_pool import RayPool

        return RayPool(size, address)
    from celm.study.processes import Processes

    return Processes(size)
