"""What `celm study estimators` found, split by split: python results/trust/estimators.py STUDY_FOLDER

Reads truth.json of the study's folder; writes, beside this file, estimators.md (a table for each utility, Pearson's
correlation with the exact Shapley values, mean over seeds) and estimators.svg (the same as a picture).
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from statistics import mean
from typing import Any

from panels import panels, save

from celm.base.files import write_text

HERE = Path(__file__).parent
UTILITIES = {"accuracy": "accuracy", "rare_class_accuracy": "accuracy on rare classes"}
"""Balanced accuracy is left out: the test sets are (all but) balanced."""


def correlations(found: dict[str, Any], utility: str) -> dict[str, dict[str, float]]:
    """Row to method to the mean over seeds; rows in which nothing can be said are left out."""
    seen: dict[str, dict[str, list[float]]] = {}
    for one in found["agreement"]:
        value = one["values"]["Pearson"]
        if (one["utility"], one["reference"]) == (utility, "shapley") and value is not None:
            seen.setdefault(one["row"], {}).setdefault(one["method"], []).append(value)
    return {row: {method: mean(values) for method, values in cells.items()} for row, cells in seen.items()}


def means(table: dict[str, dict[str, float]], methods: list[str]) -> dict[str, dict[str, float]]:
    """A row for each dataset, over its splits."""
    datasets = dict.fromkeys(row.split()[0] for row in table)
    rows = {name: [cells for row, cells in table.items() if row.startswith(name)] for name in datasets}
    return {
        f"*{name}, mean of {len(found)}*": {
            method: mean(cells[method] for cells in found if method in cells) for method in methods
        }
        for name, found in rows.items()
    }


def markdown(table: dict[str, dict[str, float]], methods: list[str], title: str) -> str:
    lines = [f"**Correlation with Shapley values of {title}**", "", "| | " + " | ".join(methods) + " |"]
    lines.append("|---" * (len(methods) + 1) + "|")
    for row, cells in {**table, **means(table, methods)}.items():
        shown = [f"{cells[method]:+.2f}" if method in cells else "–" for method in methods]
        lines.append(f"| {row} | " + " | ".join(shown) + " |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    found = json.loads((Path(sys.argv[1]) / "truth.json").read_text())
    methods = list(found["estimators"])
    tables = {title: correlations(found, utility) for utility, title in UTILITIES.items()}
    tables = {title: table for title, table in tables.items() if table}
    text = "\n".join(markdown(table, methods, title) for title, table in tables.items())
    needs = [f"| {method} | {about['needs']} |" for method, about in found["estimators"].items()]
    text += "\n".join(["", "| estimator | needs |", "|---|---|", *needs, ""])
    write_text(HERE / "estimators.md", text)
    pictures = {f"Shapley values of {title}": table for title, table in tables.items()}
    figure = panels(pictures, methods, label="Pearson correlation", limit=1, shown="{:+.2f}".format)
    save(figure, HERE / "estimators.svg")
