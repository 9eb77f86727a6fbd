"""Charts of a federation's metrics over its rounds: the accuracies together, each other metric by itself."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from markupsafe import Markup

from celm.metrics.collapse import is_accuracy
from celm.records.metric_series import SOURCE_NAMES, MetricSeries
from celm.report.formatting import format_name, pluralise
from celm.report.line_figures import metrics_figure
from celm.report.svg import inline_svg

_MAX_LINES, _MAX_CHARTS = 8, 6
"""Clients choose names and number of metrics, so the page shows the first ones only."""


@dataclass(frozen=True)
class MetricCharts:
    """Headings with their charts, and how many metrics have none."""

    charts: list[tuple[str, Markup]]
    num_hidden: int


def draw_metrics(series: Sequence[MetricSeries]) -> MetricCharts:
    """Draw the metrics that were measured in two rounds or more."""
    drawable = [line for line in series if len(line.values) > 1]
    accuracies = [line for line in drawable if is_accuracy(line.name)]
    names = dict.fromkeys(line.name for line in drawable if not is_accuracy(line.name))
    groups = [accuracies] if accuracies else []
    groups += [[line for line in drawable if line.name == name] for name in names]
    shown = [group[:_MAX_LINES] for group in groups[:_MAX_CHARTS]]
    return MetricCharts(
        [_draw_group(group, number) for number, group in enumerate(shown)],
        len(drawable) - sum(map(len, shown)),
    )


def _draw_group(group: Sequence[MetricSeries], number: int) -> tuple[str, Markup]:
    has_one_name = len({line.name for line in group}) == 1
    labels = [
        line.source if has_one_name else f"{format_name(line.name, 14)}, {line.source}" for line in group
    ]
    heading = "Accuracy" if is_accuracy(group[0].name) else format_name(group[0].name, 40)
    ends = "; ".join(
        f"{format_name(line.name, 40)} {SOURCE_NAMES[line.source]}: {list(line.values.values())[-1]:.4g}"
        for line in group
    )
    num_rounds = pluralise(max(len(line.values) for line in group), "evaluation")
    # A label may be repeated after shortening; a chart needs different ones.
    unique = [f"{label} {i}" if labels.count(label) > 1 else label for i, label in enumerate(labels, start=1)]
    label = f"{heading} over {num_rounds}. At the end: {ends}."
    return heading, inline_svg(metrics_figure(group, unique), f"metric-{number}", label)
