"""A table of mean ± standard deviation, with the paper's value beside ours, in several formats."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from statistics import mean, stdev
from typing import Any, Literal

from celm.base.files import os_errors_as_celm_error, write_text
from celm.base.text import csv_cell
from celm.records.schema import write_record
from celm.records.study_records import TableCell, TableFile

_INCOMPLETE_MARK = "†"
"""Marks a statistic that has fewer values than expected."""
_LATEX_MARK = r"$^\dagger$"
_METRIC_HEADINGS = {
    "accuracy": "Accuracy",
    "balanced_accuracy": "Balanced accuracy",
    "rare_class_accuracy": "Accuracy on rare classes",
    "mean gain": "Mean gain",
    "spread of gains": "Spread of gains",
}
"""Column to its heading in LaTeX."""


@dataclass(frozen=True)
class Statistic:
    """The mean of n values, their standard deviation (n - 1; None for n = 1) and n. Fractions, not percent."""

    mean: float
    std: float | None
    count: int
    percent: bool = True
    """Whether it is displayed in percent."""
    lower_is_better: bool = False
    ranked: bool = True
    """Whether higher or lower is better at all."""
    expected_count: int = 0
    """How many values it should have; with fewer it is marked."""

    @classmethod
    def from_values(
        cls,
        values: Sequence[float],
        percent: bool = True,
        lower_is_better: bool = False,
        ranked: bool = True,
        expected_count: int = 0,
    ) -> Statistic:
        """Compute mean and standard deviation.

        >>> Statistic.from_values([0.8, 0.9]).format()
        '85.00 ± 7.07'
        >>> Statistic.from_values([0.8, 0.9], percent=False).format()
        '0.850 ± 0.071'
        """
        spread = stdev(values) if len(values) > 1 else None
        return cls(mean(values), spread, len(values), percent, lower_is_better, ranked, expected_count)

    def format(self, separator: str = " ± ") -> str:
        spread = "" if self.std is None else separator + self.format_number(self.std)
        return self.format_number(self.mean) + spread

    def format_number(self, value: float, sign: str = "") -> str:
        """Format a number in the unit of this statistic. With the sign `+`, positive numbers have a sign, too."""
        return f"{100 * value:{sign}.2f}" if self.percent else f"{value:{sign}.3f}"

    @property
    def rank_key(self) -> float:
        """A key that is larger for better statistics, and equal if they are displayed as equal."""
        value = float(self.format_number(self.mean))
        return -value if self.lower_is_better else value

    @property
    def is_incomplete(self) -> bool:
        return self.count < self.expected_count


@dataclass(frozen=True)
class ResultTable:
    """Statistics by (row, column). The best and the second best of the competing ones are marked."""

    title: str
    rows: Sequence[str]
    columns: Sequence[str]
    ours: Mapping[tuple[str, str], Statistic]
    paper: Mapping[tuple[str, str], Statistic]
    compare: Literal["rows", "columns", "none"] = "rows"
    """Whether the rows of a column compete, or the columns of a row."""
    averaged_over: str = "seeds"
    """Units over which the means are taken."""
    min_ranked_count: int = 1
    """Fewest values of all competing statistics with which the best are marked."""

    def format_ours(
        self, row: str, column: str, separator: str = " ± ", incomplete_mark: str = _INCOMPLETE_MARK
    ) -> str:
        """Return our statistic, with a mark if it is incomplete; a dash if there is none."""
        ours = self.ours.get((row, column))
        if ours is None:
            return "–"
        return ours.format(separator) + (incomplete_mark if ours.is_incomplete else "")

    def format_paper(self, row: str, column: str, separator: str = " ± ") -> str:
        """Return the paper's statistic and our difference from it; empty if the paper has none."""
        paper, difference = self.paper.get((row, column)), self.difference(row, column)
        if paper is None:
            return ""
        return paper.format(separator) + (
            "" if difference is None else f"; {paper.format_number(difference, '+')}"
        )

    @property
    def note(self) -> str:
        """The explanation of the mark of incomplete statistics; empty if there are none."""
        counts = sorted(
            {(ours.expected_count, ours.count) for ours in self.ours.values() if ours.is_incomplete}
        )
        parts = [
            f"{' or '.join(str(n) for _, n in group)} of {expected}"
            for expected, group in groupby(counts, itemgetter(0))
        ]
        return f"{_INCOMPLETE_MARK} {', '.join(parts)} {self.averaged_over}" if parts else ""

    def rank(self, row: str, column: str) -> Literal[0, 1, 2]:
        """Return 1 for the best competitor, 2 for the second best, else 0. Equal displayed values share a rank."""
        competitors = (
            [(r, column) for r in self.rows] if self.compare == "rows" else [(row, c) for c in self.columns]
        )
        statistics = [self.ours[key] for key in competitors if key in self.ours]
        values = sorted({rival.rank_key for rival in statistics if rival.ranked}, reverse=True)
        statistic = self.ours.get((row, column))
        if self.compare == "none" or statistic is None or not statistic.ranked or len(values) < 2:
            return 0
        if min(rival.count for rival in statistics) < self.min_ranked_count:
            return 0
        if statistic.rank_key == values[0]:
            return 1
        return 2 if statistic.rank_key == values[1] else 0

    def difference(self, row: str, column: str) -> float | None:
        ours, paper = self.ours.get((row, column)), self.paper.get((row, column))
        return None if ours is None or paper is None else ours.mean - paper.mean

    def _to_record(self) -> TableFile:
        """Return the content of table.json."""
        cells = [self._cell(row, column) for row in self.rows for column in self.columns]
        return TableFile(title=self.title, compete=self.compare, over=self.averaged_over, cells=cells)

    def _cell(self, row: str, column: str) -> TableCell:
        ours, paper = self.ours.get((row, column)), self.paper.get((row, column))
        statistic = ours or paper
        return TableCell(
            row=row,
            column=column,
            mean=ours.mean if ours else None,
            std=ours.std if ours else None,
            count=ours.count if ours else 0,
            meant=ours.expected_count if ours else 0,
            place=self.rank(row, column),
            paper_mean=paper.mean if paper else None,
            paper_std=paper.std if paper else None,
            difference=self.difference(row, column),
            percent=statistic.percent if statistic else None,
            low=statistic.lower_is_better if statistic else None,
            ranked=statistic.ranked if statistic else None,
        )

    def to_json(self) -> dict[str, Any]:
        return self._to_record().model_dump()

    def to_markdown(self) -> str:
        lines = [f"**{escape_markdown(self.title)}**", ""]
        lines.append("| | " + " | ".join(map(escape_markdown, self.columns)) + " |")
        lines.append("|---" * (len(self.columns) + 1) + "|")
        for row in self.rows:
            cells = [
                self._format_cell(row, column, ("**", "**"), ("<u>", "</u>"), " ± ", _INCOMPLETE_MARK)
                for column in self.columns
            ]
            lines.append(f"| {escape_markdown(row)} | " + " | ".join(cells) + " |")
        lines += ["", self.note] if self.note else []
        return "\n".join(lines) + "\n"

    def to_latex(self) -> str:
        """Return a table with caption and label; it needs the package booktabs."""
        caption = escape_latex(self.title)
        caption += rf". Mean $\pm$ standard deviation over {escape_latex(self.averaged_over)}."
        if self.note:
            caption = f"{caption} {escape_latex(self.note).replace(_INCOMPLETE_MARK, _LATEX_MARK)}"
        label = re.sub(r"[^a-z0-9]+", "-", self.title.lower()).strip("-")
        lines = [r"\begin{table}[t]", r"\centering", rf"\caption{{{caption}}}", rf"\label{{tab:{label}}}"]
        lines += [r"\begin{tabular}{l" + "c" * len(self.columns) + "}", r"\toprule"]
        lines += [" & ".join(["", *map(self._latex_heading, self.columns)]) + r" \\", r"\midrule"]
        for row in self.rows:
            cells = [
                self._format_cell(
                    row, column, (r"\textbf{", "}"), (r"\underline{", "}"), r" $\pm$ ", _LATEX_MARK
                )
                for column in self.columns
            ]
            lines.append(" & ".join([escape_latex(row), *cells]) + r" \\")
        return "\n".join([*lines, r"\bottomrule", r"\end{tabular}", r"\end{table}"]) + "\n"

    def _latex_heading(self, column: str) -> str:
        """Return a column's name; metrics in plain words, with a percent sign if all values are percent."""
        if column not in _METRIC_HEADINGS:
            return escape_latex(column)
        statistics = [statistic for (_, name), statistic in self.ours.items() if name == column]
        unit = r" (\%)" if statistics and all(statistic.percent for statistic in statistics) else ""
        return escape_latex(_METRIC_HEADINGS[column]) + unit

    def to_csv(self) -> str:
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        names = ["row", "column", "mean", "std", "count", "paper_mean", "paper_std", "difference"]
        writer.writerow(names)
        for cell in self._to_record().cells:
            writer.writerow([csv_cell(getattr(cell, name)) for name in names])
        return text.getvalue()

    def _format_cell(
        self,
        row: str,
        column: str,
        best: tuple[str, str],
        second: tuple[str, str],
        separator: str,
        incomplete_mark: str,
    ) -> str:
        """Return our statistic, marked by its rank, and in brackets the paper's and our difference from it."""
        opening, closing = {1: best, 2: second}.get(self.rank(row, column), ("", ""))
        text = f"{opening}{self.format_ours(row, column, separator, incomplete_mark)}{closing}"
        paper_text = self.format_paper(row, column, separator)
        return f"{text} ({paper_text})" if paper_text else text


_LATEX_ESCAPES = {char: f"\\{char}" for char in "_%&#${}"} | {
    "\\": r"\textbackslash{}",
    "^": r"\textasciicircum{}",
    "~": r"\textasciitilde{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "|": r"\textbar{}",
}
_MARKDOWN_SPECIALS = re.compile(r"[\\|<*`~\[]|&(?=[#A-Za-z])|(?<![A-Za-z0-9])_|_(?![A-Za-z0-9])")
"""Characters that Markdown could read as markup. An underscore within a word is not markup."""


def escape_latex(text: str) -> str:
    """Escape text for LaTeX, on one line.

    >>> print(escape_latex("50 % of ^2"))
    50 \\% of \\textasciicircum{}2
    """
    return "".join(_LATEX_ESCAPES.get(char, char) for char in " ".join(text.split()))


def escape_markdown(text: str) -> str:
    """Escape text for a cell of a Markdown table, on one line.

    >>> print(escape_markdown("fashion_mnist a|b <i>"))
    fashion_mnist a\\|b \\<i>
    """
    return _MARKDOWN_SPECIALS.sub(r"\\\g<0>", " ".join(text.split()))


def save_table(table: ResultTable, folder: Path, name: str = "table") -> None:
    """Write the table into `folder`, as Markdown, LaTeX, CSV and JSON."""
    with os_errors_as_celm_error(folder, "create"):
        folder.mkdir(parents=True, exist_ok=True)
    write_text(folder / f"{name}.md", table.to_markdown())
    write_text(folder / f"{name}.tex", table.to_latex())
    write_text(folder / f"{name}.csv", table.to_csv())
    write_record(folder / f"{name}.json", table._to_record())
