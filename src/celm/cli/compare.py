"""`celm compare`: several methods side by side."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated

import typer
from rich.text import Text

from celm.base.errors import CelmError
from celm.cli import options
from celm.cli.grid_view import grid_view, with_logs
from celm.cli.output import Format, console, print_json, printable
from celm.cli.tables import comparison_table


def command(
    methods: Annotated[str, typer.Option(help="RULE or RULE+OBJECTIVE, separated by commas.")],
    file: Annotated[
        Path | None,
        typer.Argument(metavar="EXPERIMENT.toml", help="Settings common to all; see `celm init`."),
    ] = None,
    seeds: Annotated[str, typer.Option(help="Seeds, separated by commas.")] = "42,43,44",
    dataset: options.Dataset = None,
    split: options.Split = None,
    model: options.Model = None,
    clients: options.Clients = None,
    rounds: options.Rounds = None,
    participation: options.Participation = None,
    device: options.Device = None,
    workers: Annotated[int | None, typer.Option(min=1, help="Runs at a time; one a core by default.")] = None,
    preset: options.Preset = None,
    out: Annotated[
        Path | None, typer.Option(help="Folder; named after dataset and split by default.")
    ] = None,
    settings: options.Settings = None,
    log: options.Logs = None,
    format: Annotated[Format, typer.Option(help="text for people, json for machines.")] = Format.text,
) -> None:
    """Compare methods over seeds: mean and standard deviation, the paper's figure beside ours.

    Killed or stopped, the same command goes on with what is missing.

    [bold]Examples[/bold]

      celm compare --methods fedavg,celm --rounds 30

      celm compare --dataset fashion_mnist --split pls --methods fedavg,shapfed,celm,celm+fedrs --preset paper
    """
    given = {
        "dataset": dataset,
        "split": split,
        "model": model,
        "clients": clients,
        "rounds": rounds,
        "participation": participation,
        "device": device,
    }
    base, targets = options.experiment_from(file, given, settings), options.log_targets(log)
    chosen = [method.strip() for method in methods.split(",") if method.strip()]
    try:
        numbers = [int(seed) for seed in seeds.split(",")]
    except ValueError:
        raise CelmError(f"--seeds: '{seeds}' is not a list of whole numbers", "as in 42,43,44") from None
    if not chosen or len(set(chosen)) < len(chosen) or len(set(numbers)) < len(numbers):
        raise CelmError("--methods and --seeds must name each thing once, and something at all")
    from celm.report.page import counted
    from celm.study.compare import compare_cells, compare_table
    from celm.study.grid import run_grid
    from celm.study.processes import Processes
    from celm.study.record import record_comparison
    from celm.study.table import save_table

    place = out or Path("compare") / "-".join(filter(None, (base.dataset.name, base.split.name)))
    cells = compare_cells(base, chosen, numbers, place, preset)
    with grid_view("comparing", quiet=format is Format.json) as watch:
        results = run_grid(list(cells.values()), lambda: Processes(workers), with_logs(watch, targets))
    outcomes = dict(zip(cells, results, strict=True))
    first = next(iter(cells.values())).experiment
    title = (
        f"{first.dataset.name}, {first.split.name}, {counted(first.run.rounds or 0, 'round')}, seeds {seeds}"
    )
    table = compare_table(outcomes, title)
    save_table(table, place)
    record_comparison(
        repeated(file, chosen, numbers, {**given, "preset": preset}, settings), title, outcomes, place
    )
    # What a method changes of the training itself, beyond its weights.
    conditions = {m: said for (m, _), cell in cells.items() if (said := cell.experiment.run.conditions())}
    if format is Format.json:
        print_json({"folder": str(place.resolve()), **table.to_json(), "conditions": conditions})
    else:
        console().print(comparison_table(table, console().width))
        for method, said in conditions.items():
            console().print(Text(f"{printable(method)}: {said}", style="dim"), soft_wrap=True)
        console().print(Text(f"folder: {printable(str(place))}"), soft_wrap=True)
    failed = [f"{method} at seed {seed}: {o.error}" for (method, seed), o in outcomes.items() if o.error]
    if failed:
        raise CelmError(f"{len(failed)} of {len(outcomes)} runs failed; {'; '.join(failed)}")


def repeated(
    file: Path | None,
    methods: Sequence[str],
    seeds: Sequence[int],
    given: Mapping[str, object],
    settings: Sequence[str] | None,
) -> list[str]:
    """The command, as its report will show it."""
    command = ["celm", "compare", *([str(file)] if file else [])]
    command += ["--methods", ",".join(methods), "--seeds", ",".join(map(str, seeds))]
    for option, value in given.items():
        command += [] if value is None else [f"--{option}", str(value)]
    for setting in settings or []:
        command += ["--set", setting]
    return command
