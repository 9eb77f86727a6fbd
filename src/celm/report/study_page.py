"""The report of a study or a comparison: its table, the curves of its runs, and where each run is."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

import numpy as np
from markupsafe import Markup

from celm.report.accuracy_figure import accuracy_figure
from celm.report.inline import inline_svg
from celm.report.page import percent, render, shown
from celm.report.per_class_figure import per_class_figure
from celm.report.reading import Cell, Grid, Told, read_grid
from celm.report.sensitivity_figure import sensitivity_figure

IRRELEVANT = {"run.seed", "split.seed", "run.workers", "run.threads", "run.device"}
"""Settings that do not make another experiment."""
PROBE_GRID = {"probe.steps", "probe.lr"}


@dataclass(frozen=True)
class Shown:
    """A cell and its place among its rivals: 1 the best, 2 the second, 0 the rest."""

    cell: Cell
    place: int


@dataclass(frozen=True)
class Panel:
    """The runs on one dataset and split: method (with what varies) to seed to run."""

    name: str
    anchor: str
    runs: Mapping[str, Mapping[int, Told]]
    curves: Markup | None
    per_class: Markup | None
    grid: Markup | None


def study_page(path: Path, home: Path) -> str:
    """`home` is the folder that the page will be in; links to runs start there."""
    grid = read_grid(path / "table.json")
    finished, unfinished = runs_below(path)
    rows = list(dict.fromkeys(cell.row for cell in grid.cells))
    columns = list(dict.fromkeys(cell.column for cell in grid.cells))
    order = [*rows, *columns]
    panels = [
        panel(number, name, in_table_order(runs, order))
        for number, (name, runs) in enumerate(grouped(finished).items(), 1)
    ]
    methods = {told.experiment.method for told in finished}
    context = {
        # The page says by itself how to read its cells.
        "title": grid.title.partition("; in percent")[0],
        "rows": rows,
        "row_heading": "method" if set(rows) <= methods else "row",
        "columns": columns,
        "cells": {(s.cell.row, s.cell.column): s for s in placed(grid)},
        "paper": any(cell.paper_mean is not None for cell in grid.cells),
        "percent": all(cell.percent for cell in grid.cells),
        "low": any(cell.low for cell in grid.cells),
        "seeds": max((cell.count for cell in grid.cells), default=0),
        "meant": grid.seeds,
        "panels": panels,
        "links": {told.path: link(told.path, home) for told in finished},
        "places": {told.path: str(told.path.relative_to(path)) for told in finished},
        "finished": len(finished),
        "unfinished": [str(place.relative_to(path)) for place in unfinished],
    }
    return render("study.html", context)


def runs_below(path: Path) -> tuple[list[Told], list[Path]]:
    """The finished runs in the folder, and those that are not finished.

    Runs of some clients alone, which are there to find the truth about all of them, would only hide the methods.
    """
    places = sorted(found.parent for found in path.rglob("settings.toml"))
    finished = [Told(place) for place in places if (place / "result.json").is_file()]
    whole = [told for told in finished if told.experiment.run.clients is None]
    return whole or finished, [place for place in places if not (place / "result.json").is_file()]


def placed(grid: Grid) -> list[Shown]:
    """Best and second among the rows of a column, or the columns of a row; by what is shown, so ties share."""

    def contest(cell: Cell) -> str:
        return cell.column if grid.compete == "rows" else cell.row

    merits: dict[str, set[float]] = {}
    for cell in grid.cells:
        if cell.merit is not None:
            merits.setdefault(contest(cell), set()).add(cell.merit)
    told = []
    for cell in grid.cells:
        ranked = sorted(merits.get(contest(cell), ()), reverse=True)
        place = (
            0
            if grid.compete == "none" or cell.merit is None or len(ranked) < 2
            else ranked.index(cell.merit) + 1
        )
        told.append(Shown(cell, place if place <= 2 else 0))
    return told


def grouped(runs: Sequence[Told]) -> dict[str, dict[str, dict[int, Told]]]:
    """Dataset and split to method to seed to run; each named with the settings that tell it from its like."""
    datasets = named([(t, f"{t.result.dataset}, {t.result.split}", among(flat(t), True)) for t in runs])
    return {
        name: {
            label: {told.result.seed: told for told in seeds}
            for label, seeds in named(
                [(t, t.experiment.method, among(flat(t), False)) for t in members]
            ).items()
        }
        for name, members in datasets.items()
    }


def named(runs: Sequence[tuple[Told, str, Mapping[str, str]]]) -> dict[str, list[Told]]:
    """Runs by their name, and by the settings that vary among those of that name."""
    alike: dict[str, list[Mapping[str, str]]] = {}
    for _, name, settings in runs:
        alike.setdefault(name, []).append(settings)
    varying = {
        name: [key for key in sorted(set().union(*rows)) if len({row.get(key) for row in rows}) > 1]
        for name, rows in alike.items()
    }
    groups: dict[str, list[Told]] = {}
    for told, name, settings in runs:
        told_apart = [f"{key}={settings.get(key, 'default')}" for key in varying[name]]
        groups.setdefault(", ".join([name, *told_apart]), []).append(told)
    return groups


def among(settings: Mapping[str, str], data: bool) -> dict[str, str]:
    """The settings of the data, or all others."""
    return {key: value for key, value in settings.items() if key.startswith(("dataset.", "split.")) == data}


def in_table_order(runs: dict[str, dict[int, Told]], order: Sequence[str]) -> dict[str, dict[int, Told]]:
    """Methods as the table has them, so that a method has one colour throughout."""
    places = {name: number for number, name in enumerate(order)}
    return dict(sorted(runs.items(), key=lambda item: places.get(item[0], len(places))))


def flat(told: Told) -> dict[str, str]:
    """Settings by their whole names, as text."""
    tables = told.experiment.tables()
    return {
        f"{table}.{key}": json.dumps(value).strip('"')
        for table, values in tables.items()
        if isinstance(values, dict)
        for key, value in values.items()
        if f"{table}.{key}" not in IRRELEVANT
    }


def panel(number: int, name: str, runs: dict[str, dict[int, Told]]) -> Panel:
    curves = {method: {seed: told.records for seed, told in seeds.items()} for method, seeds in runs.items()}
    ends = "; ".join(
        f"{shown(method)} {percent(float(np.mean([t.result.accuracy for t in seeds.values()])))}"
        for method, seeds in list(runs.items())[:12]
    )
    grid = probe_settings(runs)
    drawn = grid is None and any(
        r["accuracy"] is not None for s in curves.values() for rs in s.values() for r in rs
    )
    return Panel(
        name,
        f"panel-{number}",
        runs,
        curves=inline_svg(
            accuracy_figure(curves), f"curves{number}", f"Accuracy over the rounds. At the end: {ends}."
        )
        if drawn
        else None,
        per_class=inline_svg(
            by_class(runs), f"classes{number}", f"Accuracy on each class, a dot a method, for {name}."
        )
        if grid is None and len(runs) <= 8
        else None,
        grid=inline_svg(
            sensitivity_figure(grid), f"grid{number}", "Heatmap of accuracy over the probe's steps and rate."
        )
        if grid is not None
        else None,
    )


def by_class(runs: Mapping[str, Mapping[int, Told]]) -> Any:
    """Mean over seeds of the accuracy on each class."""
    first = next(told for seeds in runs.values() for told in seeds.values())
    means: dict[str, list[float | None]] = {}
    for method, seeds in runs.items():
        rows = [told.result.per_class for told in seeds.values()]
        columns = [[v for v in column if v is not None] for column in zip(*rows, strict=True)]
        means[method] = [sum(column) / len(column) if column else None for column in columns]
    return per_class_figure(means, first.result.classes, first.result.rare_classes)


def probe_settings(runs: Mapping[str, Mapping[int, Told]]) -> dict[tuple[int, float], float] | None:
    """Mean accuracy by (steps, rate) where the runs are a full grid of nothing else; None where not."""
    members = [told for seeds in runs.values() for told in seeds.values()]
    rows = [flat(told) for told in members]
    keys = {key for row in rows for key in row}
    if {key for key in keys if len({row.get(key) for row in rows}) > 1} != PROBE_GRID:
        return None
    values: dict[tuple[int, float], list[float]] = {}
    for told in members:
        probe = told.experiment.probe
        values.setdefault((probe.steps, probe.lr), []).append(told.result.accuracy)
    whole = len(values) == len({s for s, _ in values}) * len({r for _, r in values})
    return {key: sum(row) / len(row) for key, row in values.items()} if whole else None


def link(run: Path, home: Path) -> str | None:
    """Where the run's own report is, seen from the page; None where it has none yet."""
    if not (run / "report.html").is_file():
        return None
    return quote(Path(os.path.relpath(run / "report.html", home)).as_posix())
