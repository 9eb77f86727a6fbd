"""The runs below a study's folder: which cell of the study each of them is, and what has become of the others.

A folder without study.json is from before there was such a file, or made by hand: its runs are told apart by what
differs in their settings.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from celm.base.errors import CelmError
from celm.report.reading import Asked, Standing, Told, read_errors

IRRELEVANT = {"run.seed", "split.seed", "run.workers", "run.threads", "run.device"}
"""Settings that do not make another experiment."""

Methods = Mapping[str, Sequence[Told]]
"""Method (with what varies) to its runs, one a seed."""


@dataclass(frozen=True)
class Runs:
    finished: Mapping[str, Told]
    """By the folder, seen from the study's."""
    failed: Mapping[str, str]
    """Which cell, to what went wrong."""
    unfinished: Sequence[str]
    """Folders."""
    missing: Mapping[str, str]
    """Row to those of its cells that have not been begun."""


def find_runs(path: Path, asked: Asked | None) -> Runs:
    cells = asked.cells if asked else {}
    finished, failed, unfinished = {}, {}, []
    errors = read_errors(path / "errors.json")
    for folder in sorted(found.parent for found in path.rglob("settings.toml")):
        place = folder.relative_to(path).as_posix()
        cell = cells.get(place)
        if not (folder / "result.json").is_file():
            if cell is None or cell.key not in errors:
                unfinished.append(place)
            continue
        try:
            finished[place] = Told(folder)
        except CelmError as error:
            failed[cell.key if cell else place] = str(error)
    done = {cells[place].key for place in finished if place in cells}
    failed = {name: error for name, error in errors.items() if name not in done} | failed
    labels = {cell.key: label(cell) for cell in cells.values()}
    begun = {*finished, *unfinished, *(place for place, cell in cells.items() if cell.key in failed)}
    return Runs(
        finished,
        {labels.get(name, name): error for name, error in failed.items()},
        unfinished,
        missing(cells, begun),
    )


def label(cell: Standing) -> str:
    return f"{cell.row}, {cell.method}, seed {cell.seed}"


def missing(cells: Mapping[str, Standing], begun: set[str]) -> dict[str, str]:
    """Row to the methods, with their seeds, of which nothing is there."""
    rows: dict[str, dict[str, list[str]]] = {}
    for place, cell in cells.items():
        if place not in begun:
            rows.setdefault(cell.row, {}).setdefault(cell.method, []).append(str(cell.seed))
    begun_rows = {cell.row for place, cell in cells.items() if place in begun}
    return {
        row: "; ".join(f"{method} (seed {', '.join(seeds)})" for method, seeds in methods.items())
        if row in begun_rows
        else "all of it"
        for row, methods in rows.items()
    }


def grouped(runs: Mapping[str, Told], asked: Asked | None) -> dict[str, dict[str, list[Told]]]:
    """Row to method to runs, as the study has them; what is no cell of it, by its settings."""
    groups: dict[str, dict[str, list[Told]]] = {}
    cells = asked.cells if asked else {}
    for place, cell in cells.items():
        if place in runs:
            groups.setdefault(cell.row, {}).setdefault(cell.method, []).append(runs[place])
    others = [told for place, told in runs.items() if place not in cells]
    for name, members in named(
        (t, f"{t.result.dataset}, {t.result.split}", among(flat(t), True)) for t in others
    ).items():
        methods = named((t, method_of(t), among(flat(t), False)) for t in members)
        for method, same in methods.items():
            groups.setdefault(name, {}).setdefault(method, []).extend(same)
    return groups


def method_of(told: Told) -> str:
    return told.experiment.method if told.experiment.run.clients is None else "some clients alone"


def named(runs: Iterable[tuple[Told, str, Mapping[str, str]]]) -> dict[str, list[Told]]:
    """Runs by their name, and by the settings that vary among those of that name."""
    runs = list(runs)
    alike: dict[str, list[Mapping[str, str]]] = {}
    for _, name, settings in runs:
        alike.setdefault(name, []).append(settings)
    keys = {name: varying(rows) for name, rows in alike.items()}
    groups: dict[str, list[Told]] = {}
    for told, name, settings in runs:
        told_apart = [f"{key}={settings.get(key, 'default')}" for key in keys[name]]
        groups.setdefault(", ".join([name, *told_apart]), []).append(told)
    return groups


def varying(rows: Sequence[Mapping[str, str]]) -> list[str]:
    """The settings that are not the same in all, in order."""
    keys = sorted({key for row in rows for key in row})
    return [key for key in keys if len({row.get(key) for row in rows}) > 1]


def among(settings: Mapping[str, str], data: bool) -> dict[str, str]:
    """The settings of the data, or all others."""
    return {key: value for key, value in settings.items() if key.startswith(("dataset.", "split.")) == data}


def flat(told: Told) -> dict[str, str]:
    """Settings by their whole names, as text."""
    return {
        f"{table}.{key}": json.dumps(value, ensure_ascii=False).strip('"')
        for table, values in told.experiment.tables().items()
        for key, value in (values.items() if isinstance(values, dict) else [("names", values)])
        if f"{table}.{key}" not in IRRELEVANT
    }
