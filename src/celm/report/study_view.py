"""A study's table as its page shows it: which way round, and what sets a line apart."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from celm.report.reading import Cell, Grid

MOST_COLUMNS = 8
"""A table with more is turned on its side, if that makes it narrower."""


@dataclass(frozen=True)
class View:
    """A table as the page shows it."""

    heading: str
    rows: Sequence[str]
    columns: Sequence[str]
    cells: Mapping[tuple[str, str], Cell]
    over: str
    """What figures are means over."""
    marks: Mapping[str, str]
    """Of rows and columns whose figures differ in kind from others: where less is better, and what is in percent."""


def view(grid: Grid, methods: Iterable[str]) -> View:
    """Methods are the columns, or the rows where they are too many to stand side by side."""
    rows = list(dict.fromkeys(cell.row for cell in grid.cells))
    columns = list(dict.fromkeys(cell.column for cell in grid.cells))
    cells = {(cell.row, cell.column): cell for cell in grid.cells}
    turned = len(columns) > max(MOST_COLUMNS, len(rows))
    if turned:
        rows, columns = columns, rows
        cells = {(column, row): cell for (row, column), cell in cells.items()}
    heading = "method" if set(rows) <= set(methods) or (turned and grid.compete == "columns") else "row"
    return View(heading, rows, columns, cells, grid.over, marks(grid))


def marks(grid: Grid) -> dict[str, str]:
    """Row or column to what sets it apart; nothing where all figures of the table are of one kind."""
    lines: dict[str, list[Cell]] = {name: [] for cell in grid.cells for name in (cell.row, cell.column)}
    for cell in grid.filled:
        for name in (cell.row, cell.column):
            lines[name].append(cell)
    told = {}
    for name, line in lines.items():
        percent = ", %" if differs(line, grid.filled, lambda cell: cell.percent) else ""
        low = " ↓" if differs(line, grid.filled, lambda cell: cell.low) else ""
        told[name] = percent + low
    return told


def differs(line: Sequence[Cell], cells: Sequence[Cell], kind: Callable[[Cell], bool | None]) -> bool:
    """Whether all of the line is of a kind that not all cells are of."""
    return bool(line) and all(map(kind, line)) and not all(map(kind, cells))
