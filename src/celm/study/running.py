"""A declared study: its cells, what they came to, and the table they fill."""

from __future__ import annotations

import shlex
from collections.abc import Collection, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Literal

from celm.base.errors import CelmError, nearest
from celm.federation.assembly import resolve
from celm.federation.experiment import Experiment
from celm.federation.folder import Folder
from celm.federation.presets import with_preset
from celm.federation.run import Run
from celm.study.compare import parse_method
from celm.study.declaration import Row, Study, slug
from celm.study.grid import Cell, Key, Outcome, check_place, settled, with_remedy
from celm.study.ground_truth import truth_table
from celm.study.measures import ACCURACIES, LOW_IS_GOOD, UNRANKED, WALL_CLOCK, measured
from celm.study.paper import printed
from celm.study.scales import Scale, rows_at, scaled, seeds_at
from celm.study.table import Figure, Table

FILTERS = ("dataset", "split", "row", "clients", "method", "seed")


def study_cells(study: Study, scale: Scale, out: Path, only: str = "") -> dict[Key, Cell]:
    """Every run of the study that `only` does not leave out (as in `dataset=fashion_mnist split=pls`)."""
    cells: dict[Key, Cell] = {}
    for row, method, seed in chosen(study, scale, only):
        try:
            experiment = experiment_of(study, row, method, seed, scale)
        except CelmError as error:
            where = f"study '{study.name}', row '{row.label}', method '{method}'"
            raise CelmError(f"{where}: {error}") from error
        place = out / "cells" / "-".join(map(slug, (row.label, method, f"seed{seed}")))
        cells[row.label, method, seed] = Cell(experiment, place, row.label, method)
    if not cells:
        raise CelmError(f"--only: '{only}' leaves nothing of study '{study.name}'")
    return cells


def with_earlier(
    study: Study, cells: Mapping[Key, Cell], outcomes: Mapping[Key, Outcome]
) -> dict[Key, Outcome]:
    """Also what the folder holds of all cells of the study, in their order; what failed here others may have done.

    Where every coalition is trained, of those rows and seeds that are done: with some missing nothing is known.
    """
    known = dict(outcomes)
    for key, cell in cells.items():
        failed = key in known and known[key].result is None
        if (failed or key not in known) and holds(cell) and (found := settled(cell)):
            known[key] = known[key] if failed and found.result is None else found
    missing = {(row, seed) for row, method, seed in cells if (row, method, seed) not in known}
    return {
        key: known[key]
        for key in cells
        if key in outcomes or (key in known and not (study.ground_truth and key[::2] in missing))
    }


def holds(cell: Cell) -> bool:
    """Whether the cell's folder, if there is one, is of this experiment."""
    try:
        check_place(cell)
    except CelmError:
        return False
    return True


def experiment_of(study: Study, row: Row, method: str, seed: int, scale: Scale) -> Experiment:
    chosen = study.methods_of(row)[method]
    own = chosen.settings
    rule, objective = parse_method(chosen.method or method)
    tables = {**row.settings, "rule": {"name": rule}, "objective": {"name": objective}}
    for name, settings in own.items():
        tables[name] = {**tables.get(name, {}), **settings}
    tables = scaled(tables, scale)
    tables["run"] = {**tables.get("run", {}), "seed": seed, "workers": 0}
    return resolve(Experiment.parse(with_preset(tables, "paper")))


def parse_filter(only: str) -> dict[str, list[str]]:
    """
    >>> parse_filter("split=pls seed=42,43 method='shared heads'")
    {'split': ['pls'], 'seed': ['42,43'], 'method': ['shared heads']}
    """
    try:
        parts = shlex.split(only)
    except ValueError:
        raise CelmError(f"--only: '{only}' has a quote that does not end") from None
    wanted: dict[str, list[str]] = {}
    for part in parts:
        key, equals, value = part.partition("=")
        if key not in FILTERS or not equals:
            raise CelmError(
                f"--only: '{part}' is not a filter",
                f"as in dataset=fashion_mnist split=pls method=fedavg,celm; by {', '.join(FILTERS)}",
            )
        wanted.setdefault(key, []).append(value)
    return wanted


def names_in(value: str, known: Collection[str]) -> Iterator[str]:
    """The names in a list with commas; those that are known may have commas of their own.

    >>> list(names_in("a, b,c", known={"a, b", "c", "d"}))
    ['a, b', 'c']
    """
    parts = value.split(",")
    while parts:
        wholes = {end: ",".join(parts[:end]) for end in range(len(parts), 0, -1)}
        end = next((end for end, whole in wholes.items() if whole in known), 1)
        yield wholes[end]
        parts = parts[end:]


def chosen(study: Study, scale: Scale, only: str) -> list[tuple[Row, str, int]]:
    """Row, method and seed of every run that `only` keeps. A value that fits no run at all is a mistake."""
    runs = [
        (row, method, seed)
        for row in rows_at(study, scale)
        for method in study.methods_of(row)
        for seed in seeds_at(study.seeds, scale)
    ]
    facts = [facts_of(study, *run) for run in runs]
    asked: dict[str, set[str]] = {}
    for name, lists in parse_filter(only).items():
        known = {value for fact in facts for value in fact.get(name, ())}
        slugs = {slug(value) for value in known}
        asked[name] = {slug(value) for text in lists for value in names_in(text, known)}
        for value in sorted(asked[name] - slugs):
            raise CelmError(
                f"--only: study '{study.name}' has no {name} '{value}'",
                nearest(value, slugs) if slugs else None,
            )
    # Coalitions are no methods to choose from: without all of them nothing is known.
    return [
        run
        for run, fact in zip(runs, facts, strict=True)
        if all(values & set(map(slug, fact[name])) for name, values in asked.items() if name in fact)
    ]


def facts_of(study: Study, row: Row, method: str, seed: int) -> dict[str, set[str]]:
    """What a run may be chosen by; nothing where it is not known."""
    settings = row.settings
    facts = {
        "dataset": {settings["dataset"]["name"]},
        "split": {settings["split"]["name"], row.split_label},
        "row": {row.label},
        "clients": set() if row.clients is None else {str(row.clients)},
        "method": {method},
        "seed": {str(seed)},
    }
    if method not in study.methods:
        del facts["method"]
    return facts


Measured = Mapping[Key, Mapping[str, float | None]]
"""Of every finished run, by metric."""


def measure_runs(
    study: Study, outcomes: Mapping[Key, Outcome], before: Measured | None = None
) -> tuple[dict[Key, Outcome], Measured]:
    """Every finished run of a method read once, and what its row asks of it; not again what was measured `before`.

    A run that cannot be read, or measured, becomes a failed one; the others keep their figures.
    """
    metrics = {row.label: row.metrics or study.metrics for row in study.rows}
    known = dict(outcomes)
    found: dict[Key, Mapping[str, float | None]] = {}
    for key, outcome in outcomes.items():
        row, method, _ = key
        if outcome.result is None or method not in study.methods:
            continue
        if before and key in before:
            found[key] = before[key]
            continue
        try:
            run = Run.read(Folder.open(outcome.cell.place))
            found[key] = {metric: measured(metric, run) for metric in metrics[row]}
        except Exception as error:  # whatever a damaged file leads to
            known[key] = replace(outcome, result=None, error=with_remedy(error, outcome.cell))
    return known, found


def study_table(
    study: Study,
    outcomes: Mapping[Key, Outcome],
    figures: Measured,
    scale: Scale,
    wall_clock: bool = False,
) -> Table:
    """Rows by methods and metrics, with the paper's figures at the paper's scale.

    What a clock measured is in a table of its own (`wall_clock`), since all else repeats byte for byte.
    """
    if study.ground_truth and not wall_clock:
        return truth_table(study, outcomes, scale)
    ours: dict[tuple[str, str], Figure] = {}
    paper: dict[tuple[str, str], Figure] = {}
    rows: list[str] = []
    columns: list[str] = []
    seeds = len(seeds_at(study.seeds, scale))
    for row, metric in study.places:
        if (metric in WALL_CLOCK) != wall_clock:
            continue
        label = study.table_label(row, metric)
        for method in study.methods:
            runs = [of_run for key, of_run in figures.items() if key[:2] == (row.label, method)]
            values = [value for of_run in runs if (value := of_run[metric]) is not None]
            column = metric if study.one_method else method
            if any(key[:2] == (row.label, method) for key in outcomes):
                rows = [*rows, label] if label not in rows else rows
                columns = [*columns, column] if column not in columns else columns
            if values:
                ours[label, column] = Figure.of(
                    values, metric in ACCURACIES, metric in LOW_IS_GOOD, metric not in UNRANKED, seeds
                )
            dataset = row.settings["dataset"]["name"]
            figure = printed(study.paper or "", dataset, row.split_label, method, metric)
            if figure is not None and scale is Scale.paper:
                paper[label, column] = figure
    # With one method the columns are metrics and the rows are splits, which do not compete.
    compete: Literal["none", "columns"] = "none" if study.one_method else "columns"
    what = f": {study.metric.replace('_', ' ')}" if study.metric else ""
    title = study.title + what + (", by a clock" if wall_clock else "") + scale.note
    return Table(title, rows, columns, ours, paper, compete)
