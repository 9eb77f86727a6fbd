"""A study's table as its page shows it: which way round, what is best, and what sets a line apart."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from celm.report.reading import Cell, Grid

MOST_COLUMNS = 8
"""A table with more is turned on its side, if that makes it narrower."""


@dataclass(frozen=True)
class Shown:
    """A cell and its place among its rivals: 1 the best, 2 the second, 0 the rest."""

    cell: Cell
    place: int


@dataclass(frozen=True)
class View:
    """A table as the page shows it."""

    heading: str
    rows: Sequence[str]
    columns: Sequence[str]
    cells: Mapping[tuple[str, str], Shown]
    seeds: int
    """How many a figure was meant to have."""
    marks: Mapping[str, str]
    """Of rows and columns whose figures differ in kind from others: where less is better, and what is in percent."""


def view(grid: Grid, methods: Iterable[str]) -> View:
    """Methods are the columns, or the rows where they are too many to stand side by side."""
    rows = list(dict.fromkeys(cell.row for cell in grid.cells))
    columns = list(dict.fromkeys(cell.column for cell in grid.cells))
    cells = {(told.cell.row, told.cell.column): told for told in placed(grid)}
    turned = len(columns) > max(MOST_COLUMNS, len(rows))
    if turned:
        rows, columns = columns, rows
        cells = {(column, row): told for (row, column), told in cells.items()}
    heading = "method" if set(rows) <= set(methods) or (turned and grid.compete == "columns") else "row"
    return View(heading, rows, columns, cells, grid.seeds, marks(grid))


def marks(grid: Grid) -> dict[str, str]:
    """Row or column to what sets it apart; nothing where all figures of the table are of one kind."""
    lines: dict[str, list[Cell]] = {}
    for cell in grid.cells:
        for name in (cell.row, cell.column):
            lines.setdefault(name, []).append(cell)
    told = {}
    for name, line in lines.items():
        percent = ", %" if differs(line, grid.cells, lambda cell: cell.percent) else ""
        low = " ↓" if differs(line, grid.cells, lambda cell: cell.low) else ""
        told[name] = percent + low
    return told


def differs(line: Sequence[Cell], cells: Sequence[Cell], kind: Callable[[Cell], bool]) -> bool:
    """Whether all of the line is of a kind that not all cells are of."""
    return all(map(kind, line)) and not all(map(kind, cells))


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
