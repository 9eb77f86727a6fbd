"""`celm compare`: several methods over several seeds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer
from rich.text import Text

from celm.base.errors import CelmError
from celm.cli import options
from celm.cli.output import Format, print_json, printable, stdout_console
from celm.cli.progress_view import log_finished_runs, progress_view
from celm.cli.tables import comparison_table


def compare_command(
    methods: Annotated[str, typer.Option(help="RULE or RULE+OBJECTIVE, separated by commas.")],
    file: Annotated[
        Path | None,
        typer.Argument(metavar="EXPERIMENT.toml", help="Settings of all runs; see `celm init`."),
    ] = None,
    seeds: Annotated[str, typer.Option(help="Seeds, separated by commas.")] = "42,43,44",
    dataset: options.DatasetOption = None,
    split: options.SplitOption = None,
    model: options.ModelOption = None,
    clients: options.ClientsOption = None,
    rounds: options.RoundsOption = None,
    participation: options.ParticipationOption = None,
    device: options.DeviceOption = None,
    workers: options.ParallelRunsOption = None,
    preset: options.PresetOption = None,
    grid: Annotated[
        list[str] | None,
        typer.Option(
            metavar="KEY=VALUES",
            help="Values of a setting, as in split.alpha=0.01,0.1; repeatable: every combination is compared.",
        ),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(help="Folder; by default named after data and settings that differ from the defaults."),
    ] = None,
    settings: options.SettingsOption = None,
    log: options.LogOption = None,
    format: options.FormatOption = Format.text,
) -> None:
    """Compare methods over seeds: mean and standard deviation, with the paper's figures beside them.

    If the comparison is stopped or killed, the same command runs what is missing.

    [bold]Examples[/bold]

      celm compare --methods fedavg,celm --rounds 30
      celm compare --methods fedavg,celm --split dirichlet \\
        --grid split.alpha=0.05,0.5
      celm compare --dataset fashion_mnist --split pls --preset paper \\
        --methods fedavg,shapfed,celm,celm+fedrs
    """
    option_values = {
        "dataset": dataset,
        "split": split,
        "model": model,
        "clients": clients,
        "rounds": rounds,
        "participation": participation,
        "device": device,
    }
    base, targets = options.experiment_from(file, option_values, settings), options.log_targets(log)
    method_names, seed_numbers = _parse_lists(methods, seeds)
    from celm.study.compare import make_plan, parse_grid, raise_failures, run_plan
    from celm.study.local_pool import ProcessPool

    command = _reproduce_command(
        file, method_names, seed_numbers, grid, {**option_values, "preset": preset}, settings
    )
    plan = make_plan(base, method_names, seed_numbers, parse_grid(grid or []), preset, out, command)
    with progress_view("comparing", quiet=format is Format.json) as callback:
        tables, outcomes = run_plan(plan, lambda: ProcessPool(workers), log_finished_runs(callback, targets))
    # A method may change the training itself, not only the weights.
    conditions = {
        method: description
        for (_, method, _), spec in plan.specs.items()
        if (description := spec.experiment.run.describe_conditions())
    }
    if format is Format.json:
        print_json(
            {
                "folder": str(plan.folder.resolve()),
                **tables.accuracy.to_json(),
                "contributions": tables.contributions.to_json()["cells"],
                "differences": [asdict(difference) for difference in tables.differences],
                "conditions": conditions,
            }
        )
    else:
        for table in (tables.accuracy, tables.contributions):
            stdout_console().print(comparison_table(table, stdout_console().width))
        for difference in tables.differences:
            if difference.metric == "accuracy":
                names = [*filter(None, (difference.row, f"{difference.method} - {difference.baseline}"))]
                line = f"{', '.join(names)}: {difference.format()}, points of accuracy ± standard error"
                stdout_console().print(Text(printable(line)), soft_wrap=True)
        for method, description in conditions.items():
            stdout_console().print(Text(f"{printable(method)}: {description}", style="dim"), soft_wrap=True)
        stdout_console().print(Text(f"folder: {printable(str(plan.folder))}"), soft_wrap=True)
    raise_failures(outcomes)


def _parse_lists(methods: str, seeds: str) -> tuple[list[str], list[int]]:
    """Parse `--methods` and `--seeds`."""
    method_names = [method.strip() for method in methods.split(",") if method.strip()]
    try:
        seed_numbers = [int(seed) for seed in seeds.split(",")]
    except ValueError:
        raise CelmError(f"--seeds: '{seeds}' is not a list of whole numbers", "as in 42,43,44") from None
    has_duplicates = len(set(method_names)) < len(method_names) or len(set(seed_numbers)) < len(seed_numbers)
    if not method_names or has_duplicates:
        raise CelmError("--methods and --seeds must be non-empty and without duplicates")
    return method_names, seed_numbers


def _reproduce_command(
    file: Path | None,
    methods: Sequence[str],
    seeds: Sequence[int],
    grid: Sequence[str] | None,
    option_values: Mapping[str, object],
    settings: Sequence[str] | None,
) -> list[str]:
    """Return the command that was given, for the report."""
    command = ["celm", "compare", *([str(file)] if file else [])]
    command += ["--methods", ",".join(methods), "--seeds", ",".join(map(str, seeds))]
    for values in grid or []:
        command += ["--grid", values]
    for option, value in option_values.items():
        command += [] if value is None else [f"--{option}", str(value)]
    for setting in settings or []:
        command += ["--set", setting]
    return command
