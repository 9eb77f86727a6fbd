"""The values of the paper's tables."""

from __future__ import annotations

import json
from functools import cache
from importlib.resources import files
from typing import Any

from celm.experiment.config import Experiment
from celm.experiment.presets import with_preset
from celm.study.run_metrics import LOWER_IS_BETTER
from celm.study.table import Statistic

_ACCURACY_TABLES = ("main", "maverick", "iid", "heterogeneity", "clients-20", "classes-47")
_DATASET_ALIASES = {"emnist47": "emnist", "fedisic_features": "fedisic"}
_IRRELEVANT_RUN_SETTINGS = {"workers", "threads", "device", "evaluate_every"}
_NOT_COMPARABLE = {"emd", "emd_uniform"}
"""The paper has a column of this name with another definition (`celm.metrics.fidelity`)."""


@cache
def paper_tables() -> dict[str, list[dict[str, Any]]]:
    """Return study name to the rows of the paper's table."""
    loaded = json.loads(files("celm.study").joinpath("paper.json").read_text(encoding="utf-8"))
    return {name: table for name, table in loaded.items() if isinstance(table, list)}


def find_paper_statistic(experiment: Experiment, metric: str) -> Statistic | None:
    """Return the paper's value for a resolved experiment; None if the paper does not have this experiment."""
    split = experiment.split
    name = split.name
    if name == "dirichlet":
        name = f"dirichlet_{split.options.get('alpha', 0.05):g}"
    for table in _ACCURACY_TABLES:
        clients = 20 if table == "clients-20" else 5
        if split.clients != clients and split.name != "natural":
            continue
        statistic = paper_value(table, experiment.dataset.name, name, experiment.method, metric)
        if statistic is not None:
            return statistic if _matches_paper(experiment) else None
    return None


def _matches_paper(experiment: Experiment) -> bool:
    """Check that only settings that the paper varies differ from the defaults, or from the preset `paper`."""
    from celm.federation.build import resolve_defaults  # imports torch, which `celm list` does not need

    split = experiment.split
    varied = {
        "dataset": {"name": experiment.dataset.name},
        "split": {"name": split.name, "clients": split.clients}
        | {name: value for name, value in split.options.items() if name == "alpha"},
        "rule": {"name": experiment.rule.name},
        "objective": {"name": experiment.objective.name},
        "run": {"seed": experiment.run.seed},
    }
    candidates = (
        resolve_defaults(Experiment.parse(with_preset(varied, preset))).experiment
        for preset in (None, "paper")
    )
    return any(
        _comparable_settings(candidate) == _comparable_settings(experiment) for candidate in candidates
    )


def _comparable_settings(experiment: Experiment) -> dict[str, Any]:
    """Return the settings without those that do not affect the final metrics."""
    tables = experiment.to_dict()
    run = {name: value for name, value in tables["run"].items() if name not in _IRRELEVANT_RUN_SETTINGS}
    return {**tables, "run": run, "observe": []}


def paper_value(table: str, dataset: str, split: str, method: str, metric: str) -> Statistic | None:
    """Return a cell of a table of the paper; None if it is empty or not comparable with ours."""
    if metric in _NOT_COMPARABLE:
        return None
    for row in paper_tables().get(table, []):
        if (row["dataset"], row["split"]) != (_DATASET_ALIASES.get(dataset, dataset), split):
            continue
        # The column of a distance or rate has the name of the metric, the column of an accuracy that of the method.
        for column in (f"{metric}_{method}", metric):
            if column in row:
                return Statistic(
                    float(row[column]), None, 3, percent=False, lower_is_better=metric in LOWER_IS_BETTER
                )
        if method in row and row.get("metric", _default_metric(row)) == metric:
            return Statistic(row[method]["mean"] / 100, row[method]["std"] / 100, 3)
    return None


def _default_metric(row: dict[str, Any]) -> str:
    """Return the metric that the paper calls performance: balanced accuracy for FedISIC and the Maverick split."""
    balanced = row["dataset"] == "fedisic" or row["split"] == "maverick"
    return "balanced_accuracy" if balanced else "accuracy"
