"""The metrics of a federation over its rounds, and the alarms that they give."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from celm.base.text import printable, single_line, truncate
from celm.metrics.collapse import find_collapses, full_accuracy, is_accuracy, stays_at_chance

Source = Literal["clients", "server", "training"]
SOURCE_NAMES: Mapping[Source, str] = {
    "clients": "evaluated by clients",
    "server": "evaluated by the server",
    "training": "reported with the updates",
}


@dataclass(frozen=True)
class MetricSeries:
    """A metric over the rounds."""

    source: Source
    name: str
    values: Mapping[int, float]
    """Round to value, in the order of rounds."""


@dataclass(frozen=True)
class MetricAlarm:
    """Something that an operator must know about a metric."""

    source: Source
    name: str
    text: str
    is_over: bool
    """Whether the metric has recovered since."""


def metric_series(
    evaluations: Iterable[Mapping[str, Any]], rounds: Iterable[Mapping[str, Any]]
) -> list[MetricSeries]:
    """Return every metric that is a single number: of the lines of evaluations.jsonl, then of rounds.jsonl."""
    values: dict[tuple[Source, str], dict[int, float]] = {}
    evaluated = sorted(evaluations, key=lambda line: int(line["round"]))
    sources: list[tuple[Source, str, Iterable[Mapping[str, Any]]]] = [
        ("clients", "clients", evaluated),
        ("server", "server", evaluated),
        ("training", "metrics", rounds),
    ]
    for source, key, lines in sources:
        for line in lines:
            for name, value in (line.get(key) or {}).items():
                is_number = isinstance(value, int | float) and not isinstance(value, bool)
                if is_number and math.isfinite(value):
                    values.setdefault((source, name), {})[line["round"]] = float(value)
    return [MetricSeries(source, name, by_round) for (source, name), by_round in values.items()]


def find_alarms(series: Iterable[MetricSeries], classes: int) -> list[MetricAlarm]:
    """Return the alarms of every accuracy: collapses (see `celm.metrics.collapse`), or never better than chance."""
    alarms: list[MetricAlarm] = []
    for line in series:
        if not is_accuracy(line.name):
            continue
        chance = full_accuracy(line.values.values()) / classes
        subject = f"{_short_name(line.name)} ({SOURCE_NAMES[line.source]})"
        for collapse in find_collapses(line.values, classes):
            text = (
                f"{subject} collapsed in round {collapse.round}: {collapse.value:.4g}, after {collapse.best:.4g}"
                f" in round {collapse.best_round}; chance is {chance:.4g}"
            )
            alarms.append(MetricAlarm(line.source, line.name, text, collapse.recovered is not None))
        if stays_at_chance(line.values, classes):
            text = f"{subject} was never better than chance, {chance:.4g} for {classes} classes"
            alarms.append(MetricAlarm(line.source, line.name, text, False))
    return alarms


def _short_name(name: str) -> str:
    return truncate(single_line(printable(name, replacement=" ")), 40)
