"""Tables in the terminal: whatever its width, every name and figure is there in one piece."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from celm.cli.tables import comparison_table, transposed
from celm.study.table import Figure, Table

ROWS, METHODS = ["fashion_mnist pls", "fashion_mnist dirichlet_0.05"], [f"method {i}" for i in range(26)]


def table(rows: list[str], columns: list[str], paper: bool = False) -> Table:
    keys = [(row, column) for row in rows for column in columns]
    figures = {key: Figure((i + 1) / 100, 0.0123, 2) for i, key in enumerate(keys)}
    return Table("All of it", rows, columns, figures, figures if paper else {}, "columns", seeds=3)


def printed(shown: Table, width: int) -> str:
    text = io.StringIO()
    Console(file=text, width=width).print(comparison_table(shown, width))
    return text.getvalue()


@pytest.mark.parametrize("width", [80, 120, 400])
@pytest.mark.parametrize(
    ("rows", "columns"), [(ROWS, METHODS), (METHODS, ROWS), (METHODS, METHODS), (ROWS, METHODS[:2])]
)
@pytest.mark.parametrize("paper", [False, True])
def test_nothing_is_cut(rows: list[str], columns: list[str], width: int, paper: bool) -> None:
    shown = table(rows, columns, paper)
    text = printed(shown, width)
    assert "…" not in text
    for name in (*rows, *columns):
        assert name in text or name.replace("_", " ") in text
    for figure in shown.ours.values():
        assert text.count(f" {figure.shown()}†") == 1
    assert text.count("All of it") == text.count("2 of 3 seeds") == 1


def test_many_methods_stand_below_one_another() -> None:
    lines = printed(table(ROWS, METHODS), 80).splitlines()
    assert [line.split("│")[1].strip() for line in lines if line.startswith("│")] == METHODS


def test_rivals_stay_rivals_when_turned() -> None:
    upright = table(ROWS, METHODS)
    turned = transposed(upright)
    for row, column in upright.keys():  # noqa: SIM118 - not a dict
        assert turned.place(column, row) == upright.place(row, column)
    assert transposed(turned) == upright
