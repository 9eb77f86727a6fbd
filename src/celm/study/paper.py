"""The figures that the paper prints, as data."""

from __future__ import annotations

import json
from functools import cache
from importlib.resources import files
from typing import Any

from celm.federation.assembly import resolve
from celm.federation.experiment import Experiment
from celm.federation.presets import with_preset
from celm.study.measures import LOW_IS_GOOD
from celm.study.table import Figure

ACCURACY_TABLES = ("main", "maverick", "iid", "heterogeneity", "clients-20", "classes-47")
AS_PRINTED = {"emnist47": "emnist", "fedisic_features": "fedisic"}
SILENT = {"workers", "threads", "device", "evaluate_every"}
OURS_ALONE = {"emd", "emd_uniform"}
"""The paper has a column of this name, but not of this definition (`celm.metrics.fidelity`)."""


@cache
def tables() -> dict[str, list[dict[str, Any]]]:
    """By the names of the studies that fill them."""
    loaded = json.loads(files("celm.study").joinpath("paper.json").read_text(encoding="utf-8"))
    return {name: table for name, table in loaded.items() if isinstance(table, list)}


def paper_figure(experiment: Experiment, metric: str) -> Figure | None:
    """What the paper prints for a resolved experiment; None if nothing, or if it is not one of the paper's."""
    split = experiment.split
    name = split.name
    if name == "dirichlet":
        name = f"dirichlet_{split.options.get('alpha', 0.05):g}"
    for table in ACCURACY_TABLES:
        clients = 20 if table == "clients-20" else 5
        if split.clients != clients and split.name != "natural":
            continue
        figure = printed(table, experiment.dataset.name, name, experiment.method, metric)
        if figure is not None:
            return figure if as_in_the_paper(experiment) else None
    return None


def as_in_the_paper(experiment: Experiment) -> bool:
    """Whether nothing is set but what the paper varies, with a method's own settings or those of the preset."""
    split = experiment.split
    varied = {
        "dataset": {"name": experiment.dataset.name},
        "split": {"name": split.name, "clients": split.clients}
        | {name: value for name, value in split.options.items() if name == "alpha"},
        "rule": {"name": experiment.rule.name},
        "objective": {"name": experiment.objective.name},
        "run": {"seed": experiment.run.seed},
    }
    presets = (resolve(Experiment.parse(with_preset(varied, preset))) for preset in (None, "paper"))
    return any(told(usual) == told(experiment) for usual in presets)


def told(experiment: Experiment) -> dict[str, Any]:
    """Its settings but for those that change no figure at the end."""
    tables = experiment.tables()
    run = {name: value for name, value in tables["run"].items() if name not in SILENT}
    return {**tables, "run": run, "observe": []}


def printed(table: str, dataset: str, split: str, method: str, metric: str) -> Figure | None:
    """What a table of the paper prints in one cell; None if nothing, or nothing that ours compares with."""
    if metric in OURS_ALONE:
        return None
    for row in tables().get(table, []):
        if (row["dataset"], row["split"]) != (AS_PRINTED.get(dataset, dataset), split):
            continue
        # A distance or rate has its name in the column; an accuracy stands under the method's.
        for column in (f"{metric}_{method}", metric):
            if column in row:
                return Figure(float(row[column]), None, 3, percent=False, low=metric in LOW_IS_GOOD)
        if method in row and row.get("metric", usual_metric(row)) == metric:
            return Figure(row[method]["mean"] / 100, row[method]["std"] / 100, 3)
    return None


def usual_metric(row: dict[str, Any]) -> str:
    """What the paper calls performance: balanced accuracy for FedISIC and under the Maverick split."""
    balanced = row["dataset"] == "fedisic" or row["split"] == "maverick"
    return "balanced_accuracy" if balanced else "accuracy"
