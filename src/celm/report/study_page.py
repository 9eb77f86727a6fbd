"""The report of a study or a comparison: its tables, the curves of its runs, what failed, and how to repeat it."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

import numpy as np
from markupsafe import Markup

from celm.metrics.free_riders import THRESHOLDS, threshold_curves
from celm.report.accuracy_figure import accuracy_figure
from celm.report.fidelity_figure import fidelity_figure
from celm.report.inline import inline_svg
from celm.report.page import percent, render, shown
from celm.report.per_class_figure import per_class_figure
from celm.report.reading import Told, read_asked, read_grid
from celm.report.repeating import in_parts
from celm.report.sensitivity_figure import sensitivity_figure
from celm.report.study_runs import Methods, find_runs, flat, grouped, varying
from celm.report.study_settings import study_settings
from celm.report.study_view import view
from celm.report.threshold_figure import threshold_figure

PROBE_GRID = ["probe.lr", "probe.steps"]
FIGURES = ("curves", "per_class", "grid", "fpr", "tpr", "fidelity")
DISTANCES = {f"{name}{rival}" for name in ("jsd", "emd", "hellinger") for rival in ("", "_uniform")}
MOST_DOTS = 8
"""Methods in the figure of classes."""


@dataclass(frozen=True)
class Panel:
    """The runs of one row."""

    name: str
    anchor: str
    runs: Methods
    figures: Mapping[str, Markup | None]

    @property
    def several(self) -> bool:
        """Whether there is a method with more than one seed."""
        return any(len(runs) > 1 for runs in self.runs.values())


def study_page(path: Path, home: Path) -> str:
    """`home` is the folder that the page will be in; links to runs start there."""
    grid, asked = read_grid(path / "table.json"), read_asked(path / "study.json")
    times = read_grid(path / "times.json") if (path / "times.json").is_file() else None
    runs = find_runs(path, asked)
    groups = grouped(runs.finished, asked)
    order = [name for cell in grid.cells for name in (cell.row, cell.column)]
    distances = bool(grid.cells) and {cell.column for cell in grid.cells} <= DISTANCES
    panels = [
        panel(number, name, in_table_order(methods, order), distances)
        for number, (name, methods) in enumerate(groups.items(), 1)
    ]
    methods = {told.experiment.method for told in runs.finished.values()} | {
        method for row in groups.values() for method in row
    }
    table = view(grid, methods)
    context = {
        "title": grid.title,
        "asked": asked,
        "commands": [in_parts(command) for command in asked.commands] if asked else [],
        "settings": study_settings({name: whole(methods) for name, methods in groups.items()}),
        "table": table,
        "marked": any(cell.place for cell in grid.cells),
        "times": view(times, methods) if times and times.cells else None,
        "paper": any(cell.paper_mean is not None for cell in grid.cells),
        "percent": all(cell.percent for cell in grid.filled),
        "low": {cell.low for cell in grid.filled},
        "spread": any(cell.count > 1 for cell in grid.cells),
        "gaps": any(cell.mean is None for cell in grid.cells),
        "panels": panels,
        "links": {told.path: link(told.path, home) for told in runs.finished.values()},
        "places": {told.path: place for place, told in runs.finished.items()},
        "runs": runs,
    }
    return render("study.html", context)


def in_table_order(methods: Methods, order: Sequence[str]) -> dict[str, Sequence[Told]]:
    """Methods as the table has them, so that a method has one colour throughout."""
    places = {name: number for number, name in reversed(list(enumerate(order)))}
    return dict(sorted(methods.items(), key=lambda item: places.get(item[0], len(order))))


def whole(methods: Methods) -> Methods:
    """Without runs of some clients alone, which are there to find the truth about all and would hide the methods."""
    found = {
        name: [told for told in runs if told.experiment.run.clients is None] for name, runs in methods.items()
    }
    return {name: runs for name, runs in found.items() if runs} or methods


def panel(number: int, name: str, runs: Methods, distances: bool) -> Panel:
    methods = whole(runs)
    made: dict[str, Markup] = {}
    grid = probe_settings(methods)
    if grid is not None:
        ends = " to ".join(
            f"{percent(grid[at], 2)} ({at[0]} steps of {at[1]:g})"
            for at in (min(grid, key=grid.__getitem__), max(grid, key=grid.__getitem__))
        )
        made["grid"] = inline_svg(
            sensitivity_figure(grid),
            f"grid{number}",
            f"Heatmap of accuracy over the probe's steps and rate: from {ends}.",
        )
    else:
        made |= accuracy_figures(number, name, methods)
    made |= rates_figures(number, methods)
    if distances and (drawn := fidelity_panel(number, methods)):
        made["fidelity"] = drawn
    return Panel(name, f"panel-{number}", runs, dict.fromkeys(FIGURES) | made)


def accuracy_figures(number: int, name: str, methods: Methods) -> dict[str, Markup]:
    made = {}
    curves = {method: dict(enumerate(told.records for told in runs)) for method, runs in methods.items()}
    ends = "; ".join(
        f"{shown(method)} {percent(float(np.mean([told.result.accuracy for told in runs])))}"
        for method, runs in list(methods.items())[:12]
    )
    if any(
        r["accuracy"] is not None for runs in curves.values() for records in runs.values() for r in records
    ):
        made["curves"] = inline_svg(
            accuracy_figure(curves), f"curves{number}", f"Accuracy over the rounds. At the end: {ends}."
        )
    classes = {tuple(told.result.classes) for runs in methods.values() for told in runs}
    if len(methods) <= MOST_DOTS and len(classes) == 1:
        means = by_class(methods)
        first = next(told.result for runs in methods.values() for told in runs)
        made["per_class"] = inline_svg(
            per_class_figure(means, first.classes, first.rare_classes),
            f"classes{number}",
            f"Accuracy on each class, a dot a method, for {name}. Lowest: {lowest(means, first.classes)}.",
        )
    return made


def by_class(methods: Methods) -> dict[str, list[float | None]]:
    """Mean over seeds of the accuracy on each class."""
    means: dict[str, list[float | None]] = {}
    for method, runs in methods.items():
        rows = [told.result.per_class for told in runs]
        columns = [[v for v in column if v is not None] for column in zip(*rows, strict=True)]
        means[method] = [sum(column) / len(column) if column else None for column in columns]
    return means


def lowest(means: Mapping[str, Sequence[float | None]], classes: Sequence[str]) -> str:
    """Of each method the class that it does worst on."""
    told = []
    for method, row in means.items():
        known = [(accuracy, k) for k, accuracy in enumerate(row) if accuracy is not None]
        if known:
            accuracy, k = min(known)
            told.append(f"{shown(method)} {percent(accuracy)} on {shown(classes[k], 24)}")
    return "; ".join(told)


def rates_figures(number: int, methods: Methods) -> dict[str, Markup]:
    """Over the thresholds, how many honest clients and how many free-riders are flagged, where there are any."""
    rates: dict[str, dict[str, list[float]]] = {"fpr": {}, "tpr": {}}
    for method, runs in methods.items():
        curves = [
            threshold_curves([r.standing for r in told.rounds if r.standing], told.result.free_riders)
            for told in runs
            if told.result.free_riders
        ]
        for position, rate in enumerate(rates.values()):
            if found := [curve for pair in curves if (curve := pair[position]) is not None]:
                rate[method] = np.mean(found, axis=0).tolist()
    said = {
        "fpr": ("false-positive rate", "Part of the honest clients that are flagged"),
        "tpr": ("true-positive rate", "Part of the free-riders that are flagged"),
    }
    return {
        name: inline_svg(
            threshold_figure(THRESHOLDS, rate, up=said[name][0]),
            f"{name}{number}",
            f"{said[name][1]}, over the threshold on z-scores, a line a method. Mean over thresholds: {means(rate)}.",
        )
        for name, rate in rates.items()
        if rate
    }


def means(curves: Mapping[str, Sequence[float]]) -> str:
    return "; ".join(f"{shown(method)} {np.mean(curve):.2f}" for method, curve in list(curves.items())[:12])


def fidelity_panel(number: int, methods: Methods) -> Markup | None:
    """What the first run with evidence estimates, beside the truth."""
    for told in (told for runs in methods.values() for told in runs):
        result = told.result
        evidence = result.evidence or {}
        if any(map(sum, evidence.values())) and any(map(sum, result.counts.values())):
            return inline_svg(
                fidelity_figure(result.counts, evidence, result.classes),
                f"fidelity{number}",
                f"True and estimated distribution of samples, with both marginals, seed {result.seed}.",
            )
    return None


def probe_settings(methods: Methods) -> dict[tuple[int, float], float] | None:
    """Mean accuracy by (steps, rate) where the runs are a full grid of nothing else; None where not."""
    members = [told for runs in methods.values() for told in runs]
    if varying([flat(told) for told in members]) != PROBE_GRID:
        return None
    values: dict[tuple[int, float], list[float]] = {}
    for told in members:
        probe = told.experiment.probe
        values.setdefault((probe.steps, probe.lr), []).append(told.result.accuracy)
    full = len(values) == len({s for s, _ in values}) * len({r for _, r in values})
    return {key: sum(row) / len(row) for key, row in values.items()} if full else None


def link(run: Path, home: Path) -> str | None:
    """Where the run's own report is, seen from the page; None where it has none yet."""
    if not (run / "report.html").is_file():
        return None
    return quote(Path(os.path.relpath(run / "report.html", home)).as_posix())
