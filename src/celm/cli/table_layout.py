"""Fit tables to the terminal: as they are, transposed, or divided, so that no name or figure is truncated."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from rich.console import Console
from rich.table import Table


@dataclass(frozen=True)
class TableLayout:
    """One way to lay out a table."""

    columns: int
    make_table: Callable[[Sequence[int]], Table]
    """Builds the table of the columns with these indices."""


def fit_to_width(width: int, layouts: Sequence[TableLayout]) -> list[Table]:
    """Return the first layout that fits into `width` characters; if none does, divide the first into several tables."""
    for layout in layouts:
        full_table = layout.make_table(range(layout.columns))
        if _fits(full_table, width):
            return [full_table]
    layout, blocks = layouts[0], [[0]]
    for column in range(1, layout.columns):
        if _fits(layout.make_table([*blocks[-1], column]), width):
            blocks[-1].append(column)
        else:
            blocks.append([column])
    return [layout.make_table(columns) for columns in blocks]


def _fits(table: Table, width: int) -> bool:
    return Console(width=10_000).measure(table).maximum <= width
