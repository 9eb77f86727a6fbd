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

import matplotlib
import numpy as np
from matplotlib.figure import Figure

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


def picture(tables: dict[str, dict[str, dict[str, float]]], methods: list[str]) -> Figure:
    heights = [len(table) for table in tables.values()]
    figure = Figure(figsize=(2.8 + 0.75 * len(methods), 1.5 + 0.32 * sum(heights)), layout="constrained")
    panels = figure.subplots(len(tables), 1, squeeze=False, height_ratios=heights)[:, 0]
    for axes, (title, table) in zip(panels, tables.items(), strict=True):
        values = np.array([[cells.get(method, np.nan) for method in methods] for cells in table.values()])
        image = axes.imshow(values, cmap="RdBu", vmin=-1, vmax=1, aspect="auto")
        axes.set_title(f"Shapley values of {title}", loc="left", fontsize=10)
        axes.set_xticks(range(len(methods)), methods, rotation=30, ha="right")
        axes.set_yticks(range(len(table)), list(table))
        for (y, x), value in np.ndenumerate(values):
            if np.isfinite(value):
                ink = "white" if abs(value) > 0.6 else "black"
                axes.text(x, y, f"{value:+.2f}", ha="center", va="center", fontsize=8, color=ink)
    figure.colorbar(image, ax=list(panels), label="Pearson correlation", shrink=0.6)
    return figure


if __name__ == "__main__":
    matplotlib.rcParams["svg.hashsalt"] = "celm"
    found = json.loads((Path(sys.argv[1]) / "truth.json").read_text())
    methods = list(found["estimators"])
    tables = {title: correlations(found, utility) for utility, title in UTILITIES.items()}
    tables = {title: table for title, table in tables.items() if table}
    text = "\n".join(markdown(table, methods, title) for title, table in tables.items())
    needs = [f"| {method} | {about['needs']} |" for method, about in found["estimators"].items()]
    text += "\n".join(["", "| estimator | needs |", "|---|---|", *needs, ""])
    write_text(HERE / "estimators.md", text)
    picture(tables, methods).savefig(HERE / "estimators.svg", metadata={"Date": None})
