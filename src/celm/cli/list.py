"""`celm list`: rules, objectives, splits, datasets, models, attacks and studies to choose from."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Annotated, Any

import typer
from rich.markup import escape
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from celm.attacks import attacks
from celm.base.errors import CelmError
from celm.base.registry import UNSET, Registry
from celm.cli import options
from celm.cli.output import Format, print_json, printable, stdout_console
from celm.data.registry import datasets, splits
from celm.models import models
from celm.objectives import objectives
from celm.rules import rules
from celm.study.declarations import study_names


class ListedKind(StrEnum):
    rules = "rules"
    objectives = "objectives"
    splits = "splits"
    datasets = "datasets"
    models = "models"
    attacks = "attacks"
    studies = "studies"


REGISTRIES: dict[ListedKind, Registry[Any]] = {
    ListedKind.rules: rules,
    ListedKind.objectives: objectives,
    ListedKind.splits: splits,
    ListedKind.datasets: datasets,
    ListedKind.models: models,
    ListedKind.attacks: attacks,
}
_KIND_SUMMARIES = {
    ListedKind.rules: "Server side: how client updates become the global model.",
    ListedKind.objectives: "Client side: what each client minimises.",
    ListedKind.splits: "How to divide a dataset among clients.",
    ListedKind.datasets: "Data to train on, or a folder of your own.",
    ListedKind.models: "Networks to train.",
    ListedKind.attacks: "What one adversarial client does.",
    ListedKind.studies: "Grids of runs that fill a table of the paper.",
}


def list_command(
    kind: Annotated[ListedKind | None, typer.Argument(help="What to list; by default the kinds.")] = None,
    name: Annotated[str | None, typer.Argument(help="One name of that kind, to show in full.")] = None,
    format: options.FormatOption = Format.text,
) -> None:
    """List rules, objectives, splits, datasets, models, attacks or studies, or show one with all its settings.

    [bold]Examples[/bold]

      celm list
      celm list rules
      celm list rules celm
      celm list studies --format json
    """
    if kind is None:
        _list_kinds(format)
    elif kind is not ListedKind.studies:
        _list_components(kind, name, format)
    elif name is not None:
        raise CelmError(f"celm list studies takes no name, not '{name}'", f"celm study {name} --help")
    else:
        _list_studies(format)


def _list_kinds(format: Format) -> None:
    counts = {
        kind: len(REGISTRIES[kind].names() if kind in REGISTRIES else study_names()) for kind in ListedKind
    }
    if format is Format.json:
        rows = [
            {"name": kind.value, "count": counts[kind], "summary": _KIND_SUMMARIES[kind]}
            for kind in ListedKind
        ]
        print_json({"kinds": rows})
        return
    _print_lines({f"{kind.value:10}  {counts[kind]:2}": _KIND_SUMMARIES[kind] for kind in ListedKind})
    stdout_console().print("names of one: celm list KIND", style="dim", soft_wrap=True)


def _list_components(kind: ListedKind, name: str | None, format: Format) -> None:
    registry = REGISTRIES[kind]
    names = registry.names() if name is None else [registry.check(name)]
    if format is Format.json:
        rows = [
            {"name": each, "summary": registry.summary(each), "settings": registry.settings(each)}
            for each in names
        ]
        print_json({kind.value: rows})
    elif name is None:
        _print_summaries(kind, registry)
    else:
        _print_component(registry, name)


def _print_summaries(kind: ListedKind, registry: Registry[Any]) -> None:
    _print_lines({name: registry.summary(name) for name in registry.names()})
    stdout_console().print(f"settings of one: celm list {kind.value} NAME", style="dim", soft_wrap=True)


def _print_lines(summaries: Mapping[str, str]) -> None:
    """Print one line for each name; a summary that is too long for the terminal ends with an ellipsis."""
    terminal, indent = stdout_console(), max(map(len, summaries)) + 2
    for name, summary in summaries.items():
        line = Text.assemble((f"{printable(name):{indent}}", "bold"), printable(summary))
        line.truncate(terminal.width, overflow="ellipsis")
        terminal.print(line)


def _print_component(registry: Registry[Any], name: str) -> None:
    """Print the summary of a component and a line for each setting."""
    terminal = stdout_console()
    terminal.print(f"[bold]{escape(name)}[/bold]: {escape(registry.summary(name))}")
    for setting in registry.settings(name):
        default = "not set" if setting["default"] == UNSET else setting["default"]
        terminal.print(
            f"\n[bold]{registry.kind}.{escape(setting['name'])}[/bold] = {escape(default)}", soft_wrap=True
        )
        if setting["about"]:
            terminal.print(Padding(escape(setting["about"]), (0, 0, 0, 2)))


def _list_studies(format: Format) -> None:
    from celm.study.spec import load_study

    studies = [load_study(name) for name in study_names()]
    if format is Format.json:
        rows = [
            {"name": s.name, "summary": s.title, "methods": list(s.methods), "runs": s.num_runs}
            for s in studies
        ]
        print_json({"studies": rows})
        return
    terminal, table = stdout_console(), Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("study", no_wrap=True)
    table.add_column("methods", justify="right", no_wrap=True)
    table.add_column("runs", justify="right", no_wrap=True)
    table.add_column("summary")
    other_columns = max(len(study.name) for study in studies) + len("  methods  runs  ")
    for study in studies:
        summary = Text(printable(study.title))
        summary.truncate(max(terminal.width - other_columns, 1), overflow="ellipsis")
        table.add_row(escape(study.name), str(len(study.methods)), str(study.num_runs), summary)
    terminal.print(table)
    terminal.print("methods by name: celm list studies --format json", style="dim", soft_wrap=True)
