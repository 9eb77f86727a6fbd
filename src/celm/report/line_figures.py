"""Line charts: weights or scores by client, accuracy by method, detection rates by threshold."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import numpy as np
from matplotlib.axes import Axes
from numpy.typing import ArrayLike

from celm.base.client_order import natural_sorted
from celm.base.errors import CelmError
from celm.metrics.collapse import is_accuracy
from celm.records.metric_series import MetricSeries
from celm.report.figure_layout import format_title
from celm.report.formatting import format_name
from celm.report.line_chart import AxisSpec, Series, line_chart, needs_markers
from celm.report.style import figure_style

Quantity = Literal["client_weights", "weights", "scores"]
QUANTITY_LABELS: Mapping[Quantity, str] = {
    "client_weights": "weight over all clients",
    "weights": "weight in the round's average",
    "scores": "score of the round",
}


def rounds_figure(
    records: Sequence[Mapping[str, Any]], quantity: Quantity = "client_weights", title: str | None = None
) -> Axes:
    """Draw one line per client from the records of a run: its client weight, round weight or score."""
    rows = [record.get(quantity) or {} for record in records]
    clients = natural_sorted({client for row in rows for client in row})
    values = np.array([[row.get(client) for row in rows] for client in clients], dtype=np.float64)
    is_finite = np.isfinite(values)
    if not is_finite.any():
        raise CelmError(f"cannot draw the {quantity}: no round has a value")
    rounds = np.array([record["round"] for record in records], dtype=np.float64)
    # Scores end with the warm-up, so the x axis ends with the last finite value.
    shown_rounds = _true_span(is_finite.any(axis=0))
    series = {}
    for client, y, client_is_finite in zip(
        clients, np.where(is_finite, values, np.nan), is_finite, strict=True
    ):
        if client_is_finite.any():
            series[client] = Series(
                rounds[shown_rounds], y[shown_rounds], markers=needs_markers(y[_true_span(client_is_finite)])
            )
    largest = max(float(np.nanmax(line.y)) for line in series.values())
    y_limits = (0.0, 1.06 * largest if largest > 0 else 1.0)
    with figure_style():
        return line_chart(
            series, AxisSpec("round", QUANTITY_LABELS[quantity], y_limits=y_limits), format_title(title)
        )


def accuracy_figure(
    runs: Mapping[str, Mapping[int, Sequence[Mapping[str, Any]]]],
    metric: str = "accuracy",
    title: str | None = None,
) -> Axes:
    """Draw one line per method from `runs`: method to seed to the records of its run.

    The line is the mean over the seeds that have the round. The band spans their minimum to maximum. The y axis
    spans the values.
    """
    series = {}
    for method, records_by_seed in runs.items():
        by_round: dict[int, list[float]] = {}
        for records in records_by_seed.values():
            for record in records:
                if record.get(metric) is not None:
                    by_round.setdefault(record["round"], []).append(record[metric])
        if by_round:
            series[method] = _mean_series(by_round)
    if not series:
        raise CelmError(f"cannot draw the curves: no round has {metric}")
    with figure_style():
        axis = AxisSpec("round", metric.replace("_", " "), near_zero_from_zero=False)
        return line_chart(series, axis, format_title(title))


def metrics_figure(series: Sequence[MetricSeries], labels: Sequence[str], title: str | None = None) -> Axes:
    """Draw metrics of one scale over the rounds, one line for each label."""
    if not series or len(series) != len(labels):
        raise CelmError("cannot draw the metrics: every series needs one label")
    lines = {}
    for label, metric in zip(labels, series, strict=True):
        values = np.array(list(metric.values.values()))
        lines[label] = Series(
            np.array(list(metric.values), dtype=np.float64), values, None, needs_markers(values)
        )
    fractions = all(0 <= value <= 1 for metric in series for value in metric.values.values())
    percent = fractions and all(is_accuracy(metric.name) for metric in series)
    axis = AxisSpec(
        "round", ", ".join(dict.fromkeys(format_name(metric.name, 24) for metric in series)), percent=percent
    )
    with figure_style():
        return line_chart(lines, axis, format_title(title))


def threshold_figure(
    thresholds: Sequence[float],
    rates: Mapping[str, Sequence[float]],
    title: str | None = None,
    y_label: str = "false-positive rate",
) -> Axes:
    """Draw rates of free-rider detection over the threshold on z-scores (the paper's curves).

    `rates`: method to one rate per threshold; `y_label` names the rate.
    """
    if not rates or any(len(row) != len(thresholds) for row in rates.values()) or not len(thresholds):
        raise CelmError("cannot draw the rates: every method needs one rate per threshold")
    x = np.array(thresholds, dtype=np.float64)
    order = np.argsort(x)
    series = {
        method: Series(x[order], np.array(row, dtype=np.float64)[order], markers=len(x) == 1)
        for method, row in rates.items()
    }
    axis = AxisSpec("threshold on the z-score", y_label, integer_x=False, y_limits=(0.0, 1.0))
    with figure_style():
        return line_chart(series, axis, format_title(title))


def _true_span(mask: ArrayLike) -> slice:
    """Return the slice from the first to the last true value."""
    indices = np.flatnonzero(mask)
    return slice(indices[0], indices[-1] + 1)


def _mean_series(by_round: Mapping[int, Sequence[float]]) -> Series:
    rounds = sorted(by_round)
    mean = np.array([math.fsum(by_round[r]) / len(by_round[r]) for r in rounds])
    low = np.array([min(by_round[r]) for r in rounds])
    high = np.array([max(by_round[r]) for r in rounds])
    has_several_seeds = any(len(values) > 1 for values in by_round.values())
    return Series(
        np.array(rounds, dtype=np.float64),
        mean,
        (low, high) if has_several_seeds else None,
        needs_markers(mean),
    )
