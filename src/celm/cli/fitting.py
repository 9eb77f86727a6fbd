"""Tables no wider than the terminal: as they are, on their side, or cut, so that every figure and name is whole."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from rich.console import Console
from rich.table import Table


@dataclass(frozen=True)
class Form:
    """A way to lay something out."""

    columns: int
    part: Callable[[Sequence[int]], Table]
    """The table of some of the columns, given by their places."""


def within(width: int, forms: Sequence[Form]) -> list[Table]:
    """The first form that is no wider than `width` characters; else the first, cut into tables that are not."""
    for form in forms:
        whole = form.part(range(form.columns))
        if fits(whole, width):
            return [whole]
    form, blocks = forms[0], [[0]]
    for column in range(1, form.columns):
        if fits(form.part([*blocks[-1], column]), width):
            blocks[-1].append(column)
        else:
            blocks.append([column])
    return [form.part(columns) for columns in blocks]


def fits(table: Table, width: int) -> bool:
    return Console(width=10_000).measure(table).maximum <= width
