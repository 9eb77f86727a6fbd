"""`celm list` and `celm init`: what there is to choose from, and a file to start from."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.markup import escape
from rich.table import Table

from celm.attacks import attacks
from celm.base.errors import CelmError
from celm.base.files import explained, write_text
from celm.base.registry import Registry
from celm.cli.output import Format, console, notes, print_json
from celm.data.catalogue import datasets, splits
from celm.models import models
from celm.objectives import objectives
from celm.rules import rules


class Kind(StrEnum):
    rules = "rules"
    objectives = "objectives"
    splits = "splits"
    datasets = "datasets"
    models = "models"
    attacks = "attacks"
    studies = "studies"


CATALOGUES: dict[Kind, Registry[Any]] = {
    Kind.rules: rules,
    Kind.objectives: objectives,
    Kind.splits: splits,
    Kind.datasets: datasets,
    Kind.models: models,
    Kind.attacks: attacks,
}


def list_things(
    kind: Annotated[Kind, typer.Argument(help="What to list.")],
    format: Annotated[Format, typer.Option(help="text for people, json for machines.")] = Format.text,
) -> None:
    """List rules, objectives, splits, datasets, models, attacks (with their settings) or studies.

    [bold]Example[/bold]

      celm list rules
    """
    if kind is Kind.studies:
        list_studies(format)
    else:
        list_entries(kind, format)


def list_entries(kind: Kind, format: Format) -> None:
    catalogue = CATALOGUES[kind]
    rows: list[dict[str, Any]] = [
        {"name": entry, "summary": catalogue.summary(entry), "settings": catalogue.settings(entry)}
        for entry in catalogue.names()
    ]
    if format is Format.json:
        print_json({kind.value: rows})
        return
    table = Table(show_lines=True)
    for column in (catalogue.kind, "what it is", f"settings ({catalogue.kind}.KEY)"):
        table.add_column(column)
    for row in rows:
        settings = "\n".join(
            f"[bold]{escape(setting['name'])}[/bold] = {escape(setting['default'])}"
            + (f"  [dim]{escape(setting['about'])}[/dim]" if setting["about"] else "")
            for setting in row["settings"]
        )
        table.add_row(f"[bold]{escape(row['name'])}[/bold]", escape(row["summary"]), settings)
    console().print(table)


def list_studies(format: Format) -> None:
    from celm.study.declaration import load_study, study_names

    studies = [load_study(name) for name in study_names()]
    if format is Format.json:
        print_json({"studies": [{"name": s.name, "summary": s.title, "runs": s.runs} for s in studies]})
        return
    table = Table()
    for column in ("study", "what it shows", "methods", "runs"):
        table.add_column(column, justify="right" if column == "runs" else "left")
    for study in studies:
        table.add_row(*map(escape, (study.name, study.title, ", ".join(study.methods), str(study.runs))))
    console().print(table)


def init(
    path: Annotated[Path, typer.Argument(help="File to write.")] = Path("experiment.toml"),
) -> None:
    """Write a commented experiment file to start from.

    [bold]Example[/bold]

      celm init my.toml && celm run my.toml
    """
    with explained(path, "write"):
        if path.exists():
            raise CelmError(f"{path} is there already", "choose another name")
    from celm.federation.template import commented_experiment

    write_text(path, commented_experiment())
    notes.print(f"wrote {escape(str(path))}; run it with: celm run {escape(str(path))}", soft_wrap=True)
