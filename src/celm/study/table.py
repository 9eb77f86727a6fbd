"""A table of mean ± standard deviation, with the paper's figure beside ours, in several forms."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from statistics import mean, stdev
from typing import Any, Literal

from celm.base.files import dump_json, explained, write_text

SHORT = "†"
"""Marks figures of fewer values than meant."""


@dataclass(frozen=True)
class Figure:
    """A mean of n values, their standard deviation (n - 1; None for a single one) and n. Fractions, not percent."""

    mean: float
    std: float | None
    count: int
    percent: bool = True
    """Whether it is shown in percent, or as it is."""
    low: bool = False
    """Whether less is better."""
    ranked: bool = True
    """Whether more, or less, is better at all."""
    meant: int = 0
    """How many values it should be of; with fewer it is marked."""

    @classmethod
    def of(
        cls,
        values: Sequence[float],
        percent: bool = True,
        low: bool = False,
        ranked: bool = True,
        meant: int = 0,
    ) -> Figure:
        """
        >>> Figure.of([0.8, 0.9]).shown()
        '85.00 ± 7.07'
        >>> Figure.of([0.8, 0.9], percent=False).shown()
        '0.850 ± 0.071'
        """
        spread = stdev(values) if len(values) > 1 else None
        return cls(mean(values), spread, len(values), percent, low, ranked, meant)

    def shown(self, between: str = " ± ") -> str:
        spread = "" if self.std is None else between + self.scaled(self.std)
        return self.scaled(self.mean) + spread

    def scaled(self, value: float, sign: str = "") -> str:
        """A number as this figure shows its own; with `+` also the sign of positive ones."""
        return f"{100 * value:{sign}.2f}" if self.percent else f"{value:{sign}.3f}"

    @property
    def merit(self) -> float:
        """Larger is better; equal where what is shown is equal."""
        shown = float(self.scaled(self.mean))
        return -shown if self.low else shown

    @property
    def short(self) -> bool:
        return self.count < self.meant


@dataclass(frozen=True)
class Table:
    """Figures by (row, column). The best and second-best are marked among those that compete with one another."""

    title: str
    rows: Sequence[str]
    columns: Sequence[str]
    ours: Mapping[tuple[str, str], Figure]
    paper: Mapping[tuple[str, str], Figure]
    compete: Literal["rows", "columns", "none"] = "rows"
    """Whether the rows of a column compete, or the columns of a row, or nothing."""
    over: str = "seeds"
    """What figures are means over."""

    def own(self, row: str, column: str, between: str = " ± ", short: str = SHORT) -> str:
        """Our figure, with a mark where it is of fewer values than meant; a dash where there is none."""
        ours = self.ours.get((row, column))
        if ours is None:
            return "–"
        return ours.shown(between) + (short if ours.short else "")

    def beside(self, row: str, column: str, between: str = " ± ") -> str:
        """The paper's figure, and how far ours is above it; empty where the paper has none."""
        paper, difference = self.paper.get((row, column)), self.difference(row, column)
        if paper is None:
            return ""
        return paper.shown(between) + ("" if difference is None else f"; {paper.scaled(difference, '+')}")

    @property
    def note(self) -> str:
        """What the mark of short figures means; empty where there are none."""
        counts = sorted({(ours.meant, ours.count) for ours in self.ours.values() if ours.short})
        told = [
            f"{' or '.join(str(n) for _, n in group)} of {meant}"
            for meant, group in groupby(counts, itemgetter(0))
        ]
        return f"{SHORT} {', '.join(told)} {self.over}" if told else ""

    def place(self, row: str, column: str) -> int:
        """1 for the best among its rivals, 2 for the second, 0 for the rest; by what is shown, so ties share."""
        rivals = (
            [(r, column) for r in self.rows] if self.compete == "rows" else [(row, c) for c in self.columns]
        )
        figures = [self.ours[key] for key in rivals if key in self.ours]
        values = sorted({figure.merit for figure in figures if figure.ranked}, reverse=True)
        mine = self.ours.get((row, column))
        if self.compete == "none" or mine is None or not mine.ranked or len(values) < 2:
            return 0
        return {values[0]: 1, values[1]: 2}.get(mine.merit, 0)

    def difference(self, row: str, column: str) -> float | None:
        ours, paper = self.ours.get((row, column)), self.paper.get((row, column))
        return None if ours is None or paper is None else ours.mean - paper.mean

    def to_json(self) -> dict[str, Any]:
        cells = []
        for row, column in self.keys():
            ours, paper = self.ours.get((row, column)), self.paper.get((row, column))
            kind = ours or paper
            cells.append(
                {
                    "row": row,
                    "column": column,
                    "mean": ours and ours.mean,
                    "std": ours and ours.std,
                    "count": ours.count if ours else 0,
                    "meant": ours.meant if ours else 0,
                    "place": self.place(row, column),
                    "paper_mean": paper and paper.mean,
                    "paper_std": paper and paper.std,
                    "difference": self.difference(row, column),
                    "percent": kind and kind.percent,
                    "low": kind and kind.low,
                    "ranked": kind and kind.ranked,
                }
            )
        return {"title": self.title, "compete": self.compete, "over": self.over, "cells": cells}

    def keys(self) -> Iterable[tuple[str, str]]:
        return [(row, column) for row in self.rows for column in self.columns]

    def to_markdown(self) -> str:
        lines = [f"**{marked_down(self.title)}**", ""]
        lines.append("| | " + " | ".join(map(marked_down, self.columns)) + " |")
        lines.append("|---" * (len(self.columns) + 1) + "|")
        for row in self.rows:
            cells = [
                self.cell(row, column, ("**", "**"), ("<u>", "</u>"), " ± ", SHORT) for column in self.columns
            ]
            lines.append(f"| {marked_down(row)} | " + " | ".join(cells) + " |")
        lines += ["", self.note] if self.note else []
        return "\n".join(lines) + "\n"

    def to_latex(self) -> str:
        lines = [r"\begin{tabular}{l" + "c" * len(self.columns) + "}", r"\toprule"]
        lines += [" & ".join(["", *map(escaped, self.columns)]) + r" \\", r"\midrule"]
        for row in self.rows:
            cells = [
                self.cell(row, column, (r"\textbf{", "}"), (r"\underline{", "}"), r" $\pm$ ", r"$^\dagger$")
                for column in self.columns
            ]
            lines.append(" & ".join([escaped(row), *cells]) + r" \\")
        lines += [r"\bottomrule", r"\end{tabular}"]
        lines += [r"\\ " + self.note.replace(SHORT, r"$^\dagger$")] if self.note else []
        return "\n".join(lines) + "\n"

    def to_csv(self) -> str:
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        names = ["row", "column", "mean", "std", "count", "paper_mean", "paper_std", "difference"]
        writer.writerow(names)
        for cell in self.to_json()["cells"]:
            writer.writerow(["" if cell[name] is None else cell[name] for name in names])
        return text.getvalue()

    def cell(
        self,
        row: str,
        column: str,
        best: tuple[str, str],
        second: tuple[str, str],
        between: str,
        short: str,
    ) -> str:
        """Ours, marked, and in brackets the paper's and how far ours is above it."""
        left, right = {1: best, 2: second}.get(self.place(row, column), ("", ""))
        shown = f"{left}{self.own(row, column, between, short)}{right}"
        beside = self.beside(row, column, between)
        return f"{shown} ({beside})" if beside else shown


LATEX = {char: f"\\{char}" for char in "_%&#${}"} | {
    "\\": r"\textbackslash{}",
    "^": r"\textasciicircum{}",
    "~": r"\textasciitilde{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "|": r"\textbar{}",
}
MARKDOWN = re.compile(r"[\\|<*`~\[]|&(?=[#A-Za-z])|(?<![A-Za-z0-9])_|_(?![A-Za-z0-9])")
"""What could be read as markup; an underscore within a word is not."""


def escaped(text: str) -> str:
    """Text for LaTeX, on one line.

    >>> print(escaped("50 % of ^2"))
    50 \\% of \\textasciicircum{}2
    """
    return "".join(LATEX.get(char, char) for char in " ".join(text.split()))


def marked_down(text: str) -> str:
    """Text for a cell of Markdown, on one line.

    >>> print(marked_down("fashion_mnist a|b <i>"))
    fashion_mnist a\\|b \\<i>
    """
    return MARKDOWN.sub(r"\\\g<0>", " ".join(text.split()))


def save_table(table: Table, folder: Path, name: str = "table") -> None:
    """The table in `folder`, as Markdown, LaTeX, CSV and JSON."""
    with explained(folder, "create"):
        folder.mkdir(parents=True, exist_ok=True)
    write_text(folder / f"{name}.md", table.to_markdown())
    write_text(folder / f"{name}.tex", table.to_latex())
    write_text(folder / f"{name}.csv", table.to_csv())
    write_text(folder / f"{name}.json", dump_json(table.to_json(), indent=2) + "\n")
