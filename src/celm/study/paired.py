"""Paired differences between methods: both ran with the same seeds, so differences are taken seed by seed.

    d_s = a_s - b_s over the common seeds s        mean d, standard error = sd(d) / sqrt(n)

The standard error counts n - 1 degrees of freedom and is not defined for one seed.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from statistics import mean, stdev
from typing import TYPE_CHECKING

from celm.base.files import write_text
from celm.base.text import csv_cell
from celm.study.run_metrics import ACCURACY_METRICS
from celm.study.table import escape_latex, escape_markdown

if TYPE_CHECKING:
    from celm.study.plan import GridKey
    from celm.study.results import RunOutcome

_HEADINGS = ("row", "method", "minus", "metric", "difference", "standard_error", "seeds")


@dataclass(frozen=True)
class PairedDifference:
    """The mean difference of two methods in a metric, a fraction."""

    row: str
    """Grid point; empty without a grid."""
    method: str
    baseline: str
    metric: str
    difference: float
    standard_error: float | None
    seeds: int

    def format(self) -> str:
        """Return the difference in points, such as `+1.20 ± 0.40 (3 seeds)`."""
        error = "" if self.standard_error is None else f" ± {100 * self.standard_error:.2f}"
        return f"{100 * self.difference:+.2f}{error} ({self.seeds} seed{'s' if self.seeds > 1 else ''})"


def paired_difference(
    values: Mapping[int, float], baseline: Mapping[int, float]
) -> tuple[float, float | None, int] | None:
    """Return mean difference, its standard error and the number of common seeds; None without a common seed.

    >>> paired_difference({1: 0.5, 2: 0.75}, {1: 0.25, 2: 0.25, 3: 0.9})
    (0.375, 0.125, 2)
    """
    differences = [value - baseline[seed] for seed, value in values.items() if seed in baseline]
    if not differences:
        return None
    count = len(differences)
    return mean(differences), stdev(differences) / count**0.5 if count > 1 else None, count


def paired_differences(outcomes: Mapping[GridKey, RunOutcome]) -> list[PairedDifference]:
    """Return the differences of every later method to every earlier one, at each grid point, for each accuracy."""
    values: dict[tuple[str, str], dict[str, dict[int, float]]] = {}
    for (point, method, seed), outcome in outcomes.items():
        for metric in ACCURACY_METRICS:
            value = None if outcome.result is None else getattr(outcome.result, metric)
            if value is not None:
                values.setdefault((point, metric), {}).setdefault(method, {})[seed] = value
    return [
        PairedDifference(point, method, baseline, metric, *difference)
        for (point, metric), by_method in values.items()
        for baseline, method in combinations(by_method, 2)
        if (difference := paired_difference(by_method[method], by_method[baseline])) is not None
    ]


def save_differences(differences: Sequence[PairedDifference], title: str, folder: Path) -> None:
    """Write the differences as differences.md, .tex and .csv."""
    write_text(folder / "differences.md", _to_markdown(differences, title))
    write_text(folder / "differences.tex", _to_latex(differences, title))
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(_HEADINGS)
    for d in differences:
        cells = (d.row, d.method, d.baseline, d.metric, d.difference, d.standard_error, d.seeds)
        writer.writerow([csv_cell(cell) for cell in cells])
    write_text(folder / "differences.csv", text.getvalue())


def _rows(differences: Sequence[PairedDifference]) -> list[list[str]]:
    return [
        [
            ", ".join(filter(None, (d.row, f"{d.method} - {d.baseline}"))),
            d.metric.replace("_", " "),
            d.format(),
        ]
        for d in differences
    ]


def _to_markdown(differences: Sequence[PairedDifference], title: str) -> str:
    lines = [
        f"**{escape_markdown(title)}: paired differences**",
        "",
        "| | metric | points ± standard error |",
    ]
    lines += ["|---|---|---|"]
    lines += [f"| {' | '.join(map(escape_markdown, row))} |" for row in _rows(differences)]
    return "\n".join(lines) + "\n"


def _to_latex(differences: Sequence[PairedDifference], title: str) -> str:
    rows = [
        " & ".join(escape_latex(cell).replace(" ± ", r" $\pm$ ") for cell in row) + r" \\"
        for row in _rows(differences)
    ]
    return "\n".join(
        [
            r"\begin{table}[t]",
            r"\centering",
            rf"\caption{{{escape_latex(title)}: paired differences, in points $\pm$ standard error.}}",
            r"\begin{tabular}{llr}",
            r"\toprule",
            r"Methods & Metric & Difference \\",
            r"\midrule",
            *rows,
            r"\bottomrule",
            r"\end{tabular}",
            r"\end{table}",
            "",
        ]
    )
