"""The report of a study or a comparison: its tables, the figures of its runs, failures, and its command."""

from __future__ import annotations

import os
import shlex
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path
from urllib.parse import quote

from celm.records.study_records import TableCell, TableFile
from celm.report.plain_names import plain_title
from celm.report.study_panels import make_panel, without_coalitions
from celm.report.study_settings import RunsByMethod, summarise_settings
from celm.report.study_view import StudyView
from celm.report.templating import render_page
from celm.report.views import RunView

_DISTANCE_METRICS = {f"{name}{rival}" for name in ("jsd", "emd", "hellinger") for rival in ("", "_uniform")}
_MAX_COLUMNS = 8
"""A table with more columns is transposed, if that makes it narrower."""


def study_page(view: StudyView, page_folder: Path) -> str:
    """Return the HTML page. `page_folder` is the folder of the page; links to runs start there."""
    table_file, manifest, runs, rows = view.table, view.manifest, view.runs, view.rows
    order = [name for cell in table_file.cells for name in (cell.row, cell.column)]
    columns = {cell.column for cell in table_file.cells}
    shows_distances = bool(columns) and columns <= _DISTANCE_METRICS
    methods = {run.experiment.method for run in runs.finished.values()} | {
        method for runs_by_method in rows.values() for method in runs_by_method
    }
    context = {
        "title": plain_title(table_file.title),
        "manifest": manifest,
        "commands": [_command_parts(command) for command in manifest.commands] if manifest else [],
        "settings": summarise_settings(
            {row: without_coalitions(runs_by_method) for row, runs_by_method in rows.items()}
        ),
        "table": _make_table_view(table_file, methods),
        "times": _make_table_view(view.times, methods) if view.times and view.times.cells else None,
        "has_ranks": any(cell.place for cell in table_file.cells),
        "has_paper_values": any(cell.paper_mean is not None for cell in table_file.cells),
        "has_deviations": any(cell.count > 1 for cell in table_file.cells),
        "has_gaps": any(cell.mean is None for cell in table_file.cells),
        "all_percent": all(cell.percent for cell in table_file.filled_cells),
        "lower_is_better": {cell.low for cell in table_file.filled_cells},
        "panels": [
            make_panel(
                number, row, _sort_like_table(runs_by_method, order), shows_distances or len(rows) == 1
            )
            for number, (row, runs_by_method) in enumerate(rows.items(), 1)
        ],
        "links": {
            runs.finished[folder].path: _relative_link(report, page_folder)
            for folder, report in view.run_reports.items()
        },
        "folders": {run.path: folder for folder, run in runs.finished.items()},
        "runs": runs,
    }
    return render_page("study.html", context)


def _command_parts(arguments: Sequence[str]) -> list[str]:
    """Quote a command for the shell; each part is an option with its value.

    >>> _command_parts(["celm", "study", "main", "--only", "split=pls seed=42"])
    ['celm study main', "--only 'split=pls seed=42'"]
    """
    head = list(takewhile(lambda argument: not argument.startswith("--"), arguments))
    pairs = [arguments[i : i + 2] for i in range(len(head), len(arguments), 2)]
    return [shlex.join(part) for part in (head, *pairs)]


def _sort_like_table(methods: RunsByMethod, order: Sequence[str]) -> dict[str, Sequence[RunView]]:
    """Sort methods as in the table, so that a method has the same colour in all figures."""
    ranks = {name: number for number, name in reversed(list(enumerate(order)))}
    return dict(sorted(methods.items(), key=lambda item: ranks.get(item[0], len(order))))


def _relative_link(report: Path, page_folder: Path) -> str:
    return quote(Path(os.path.relpath(report, page_folder)).as_posix())


@dataclass(frozen=True)
class _TableView:
    """A table as the page shows it."""

    heading: str
    """Heading of the first column."""
    rows: Sequence[str]
    columns: Sequence[str]
    cells: Mapping[tuple[str, str], TableCell]
    averaged_over: str
    """Noun in the plural, such as seeds."""
    line_notes: Mapping[str, str]
    """Row or column to its note: percent, or lower is better; empty if the whole table is of that kind."""


def _make_table_view(table_file: TableFile, methods: Iterable[str]) -> _TableView:
    """Arrange the cells in rows and columns. A table with too many columns is transposed."""
    rows = list(dict.fromkeys(cell.row for cell in table_file.cells))
    columns = list(dict.fromkeys(cell.column for cell in table_file.cells))
    cells = {(cell.row, cell.column): cell for cell in table_file.cells}
    transposed = len(columns) > max(_MAX_COLUMNS, len(rows))
    if transposed:
        rows, columns = columns, rows
        cells = {(column, row): cell for (row, column), cell in cells.items()}
    rows_are_methods = set(rows) <= set(methods) or (transposed and table_file.compete == "columns")
    return _TableView(
        "method" if rows_are_methods else "row",
        rows,
        columns,
        cells,
        table_file.over,
        _make_line_notes(table_file),
    )


def _make_line_notes(table_file: TableFile) -> dict[str, str]:
    """Return the note of each row and column."""
    lines: dict[str, list[TableCell]] = {
        name: [] for cell in table_file.cells for name in (cell.row, cell.column)
    }
    for cell in table_file.filled_cells:
        for name in (cell.row, cell.column):
            lines[name].append(cell)
    notes = {}
    for name, line in lines.items():
        unit = ", %" if _is_distinct_kind(line, table_file.filled_cells, lambda cell: cell.percent) else ""
        is_low = _is_distinct_kind(line, table_file.filled_cells, lambda cell: cell.low)
        notes[name] = unit + (" ↓" if is_low else "")
    return notes


def _is_distinct_kind(
    line: Sequence[TableCell], cells: Sequence[TableCell], is_kind: Callable[[TableCell], bool | None]
) -> bool:
    """Return whether all cells of the line, but not all cells of the table, are of a kind."""
    return bool(line) and all(map(is_kind, line)) and not all(map(is_kind, cells))
