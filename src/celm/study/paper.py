"""The figures that the paper prints, as data."""

from __future__ import annotations

import json
from functools import cache
from importlib.resources import files
from typing import Any

from celm.federation.experiment import Experiment
from celm.study.table import Figure

ACCURACY_TABLES = ("main", "maverick", "iid", "heterogeneity", "clients-20", "classes-47")


@cache
def tables() -> dict[str, Any]:
    loaded: dict[str, Any] = json.loads(
        files("celm.study").joinpath("paper.json").read_text(encoding="utf-8")
    )
    return loaded


def paper_figure(experiment: Experiment, metric: str) -> Figure | None:
    """What the paper prints for this dataset, split, number of clients, method and metric; None if nothing."""
    split = experiment.split
    name = split.name
    if name == "dirichlet":
        name = f"dirichlet_{split.options.get('alpha', 0.05):g}"
    for table in ACCURACY_TABLES:
        if split.clients != {"clients-20": 20}.get(table, 6 if experiment.dataset.name == "fedisic" else 5):
            continue
        for row in tables()[table]:
            if (row["dataset"], row["split"]) != (experiment.dataset.name, name):
                continue
            if row.get("metric", usual_metric(row)) == metric and experiment.method in row:
                cell = row[experiment.method]
                return Figure(cell["mean"] / 100, cell["std"] / 100, 3)
    return None


def usual_metric(row: dict[str, Any]) -> str:
    """What the paper calls performance: balanced accuracy for FedISIC and under the Maverick split."""
    balanced = row["dataset"] == "fedisic" or row["split"] == "maverick"
    return "balanced_accuracy" if balanced else "accuracy"
