"""Summarise `celm study estimators` for each split: python results/trust/estimators.py STUDY_FOLDER

The script reads truth.json of the study's folder and writes two files beside this one. estimators.md has a table for
each utility: Pearson's correlation with the exact Shapley values, as a mean over seeds. estimators.svg shows the same.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from statistics import mean
from typing import Any

from panels import draw_panels, save_figure

from celm.base.files import write_text

HERE = Path(__file__).parent
UTILITIES = {"accuracy": "accuracy", "rare_class_accuracy": "accuracy on rare classes"}
"""Utility to its title. Balanced accuracy is excluded, because the test sets are almost balanced."""


def correlations(truth: dict[str, Any], utility: str) -> dict[str, dict[str, float]]:
    """Return row to method to the mean over seeds, without rows that have no correlation."""
    values_by_row: dict[str, dict[str, list[float]]] = {}
    for entry in truth["agreement"]:
        value = entry["values"]["Pearson"]
        if (entry["utility"], entry["reference"]) == (utility, "shapley") and value is not None:
            values_by_row.setdefault(entry["row"], {}).setdefault(entry["method"], []).append(value)
    return {
        row: {method: mean(values) for method, values in cells.items()}
        for row, cells in values_by_row.items()
    }


def dataset_means(table: dict[str, dict[str, float]], methods: list[str]) -> dict[str, dict[str, float]]:
    """Return one row per dataset: the means over its splits."""
    datasets = dict.fromkeys(row.split()[0] for row in table)
    rows = {name: [cells for row, cells in table.items() if row.startswith(name)] for name in datasets}
    return {
        f"*{name}, mean of {len(dataset_rows)}*": {
            method: mean(cells[method] for cells in dataset_rows if method in cells) for method in methods
        }
        for name, dataset_rows in rows.items()
    }


def markdown_table(table: dict[str, dict[str, float]], methods: list[str], title: str) -> str:
    lines = [f"**Correlation with Shapley values of {title}**", "", "| | " + " | ".join(methods) + " |"]
    lines.append("|---" * (len(methods) + 1) + "|")
    for row, cells in {**table, **dataset_means(table, methods)}.items():
        values = [f"{cells[method]:+.2f}" if method in cells else "–" for method in methods]
        lines.append(f"| {row} | " + " | ".join(values) + " |")
    return "\n".join(lines) + "\n"


def correlation_tables(truth: dict[str, Any]) -> dict[str, dict[str, dict[str, float]]]:
    """Return the title of each utility to its table, without utilities that have no correlation."""
    tables = {title: correlations(truth, utility) for utility, title in UTILITIES.items()}
    return {title: table for title, table in tables.items() if table}


def format_page(truth: dict[str, Any]) -> str:
    """Return the text of estimators.md."""
    methods = list(truth["estimators"])
    tables = correlation_tables(truth)
    text = "\n".join(markdown_table(table, methods, title) for title, table in tables.items())
    requirement_rows = [
        f"| {method} | {estimator['needs']} |" for method, estimator in truth["estimators"].items()
    ]
    return text + "\n".join(["", "| estimator | needs |", "|---|---|", *requirement_rows, ""])


if __name__ == "__main__":
    truth = json.loads((Path(sys.argv[1]) / "truth.json").read_text())
    write_text(HERE / "estimators.md", format_page(truth))
    pictures = {f"Shapley values of {title}": table for title, table in correlation_tables(truth).items()}
    figure = draw_panels(
        pictures,
        list(truth["estimators"]),
        label="Pearson correlation",
        limit=1,
        format_value="{:+.2f}".format,
    )
    save_figure(figure, HERE / "estimators.svg")
