"""The methods of one row of a study in a table: accuracy, beside it fidelity and weights."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from celm.metrics.fidelity import fidelity, fidelity_to_uniform
from celm.report.formatting import format_number, format_percent
from celm.report.study_settings import RunsByMethod
from celm.report.views import RunView


@dataclass(frozen=True)
class MethodValue:
    """One quantity of a method: mean and standard deviation over its runs."""

    mean: float | None
    text: str


@dataclass(frozen=True)
class MethodTable:
    """Quantities of the methods of a row. Columns without any value are left out."""

    headings: Sequence[str]
    rows: dict[str, Sequence[MethodValue]]
    uniform: float | None
    """Jensen-Shannon distance of a uniform guess, mean over the first method's runs; None without fidelity."""


_Measure = Callable[[RunView], float | None]


def method_table(methods: RunsByMethod) -> MethodTable:
    """Return the table of a row's methods."""
    columns: list[tuple[str, _Measure, Callable[[float], str]]] = [
        ("accuracy", lambda run: run.result.accuracy, _percent),
        ("balanced", lambda run: run.result.balanced_accuracy, _percent),
        ("rare classes", lambda run: run.result.rare_class_accuracy, _percent),
        ("fidelity, JSD ↓", _distance, lambda value: format_number(value, 3)),
        ("largest weight", lambda run: max(run.result.weights.values()), _percent),
        ("free-riders' weight ↓", _free_rider_weight, _percent),
    ]
    cells = {
        method: [_summarise([measure(run) for run in runs], form) for _, measure, form in columns]
        for method, runs in methods.items()
    }
    used = [i for i in range(len(columns)) if any(row[i].mean is not None for row in cells.values())]
    uniform = [
        value for runs in methods.values() for run in runs if (value := _uniform_distance(run)) is not None
    ]
    has_fidelity = any(row[3].mean is not None for row in cells.values())
    return MethodTable(
        [columns[i][0] for i in used],
        {method: [row[i] for i in used] for method, row in cells.items()},
        float(np.mean(uniform)) if uniform and has_fidelity else None,
    )


def mean_weights(methods: RunsByMethod) -> dict[str, dict[str, float]]:
    """Return the final weight of each client by method, averaged over the runs that have the client."""
    means = {}
    for method, runs in methods.items():
        values: dict[str, list[float]] = {}
        for run in runs:
            for client, weight in run.result.weights.items():
                values.setdefault(client, []).append(weight)
        means[method] = {client: float(np.mean(row)) for client, row in values.items()}
    return means


def _summarise(values: Sequence[float | None], form: Callable[[float], str]) -> MethodValue:
    known = [value for value in values if value is not None]
    if not known:
        return MethodValue(None, "–")
    mean = float(np.mean(known))
    deviation = f" ± {form(float(np.std(known, ddof=1)))}" if len(known) > 1 else ""
    return MethodValue(mean, f"{form(mean)}{deviation}")


def _percent(value: float) -> str:
    return format_percent(value, 2)


def _distance(run: RunView) -> float | None:
    """Return the Jensen-Shannon distance of the run's evidence from the truth."""
    counts = {client: [float(count) for count in row] for client, row in run.result.counts.items()}
    evidence = run.result.evidence or {}
    if not evidence or not set(evidence) <= set(counts):
        return None
    distances = fidelity(counts, evidence)
    return None if distances is None else distances.jensen_shannon


def _uniform_distance(run: RunView) -> float | None:
    if not run.result.counts:
        return None
    distances = fidelity_to_uniform({c: [float(n) for n in row] for c, row in run.result.counts.items()})
    return None if distances is None else distances.jensen_shannon


def _free_rider_weight(run: RunView) -> float | None:
    """Return the total weight of the free-riders; None without free-riders."""
    riders = run.result.free_riders
    return sum(run.result.weights.get(client, 0.0) for client in riders) if riders else None
