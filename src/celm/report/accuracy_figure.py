"""Accuracy over the rounds, one line a method, with a band over its seeds."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes

from celm.base.errors import CelmError
from celm.report.lines import Line, Scale, few, lines_figure
from celm.report.sheet import heading_text
from celm.report.style import look, save_figure

__all__ = ["accuracy_figure", "save_figure"]


def accuracy_figure(
    runs: Mapping[str, Mapping[int, Sequence[Mapping[str, Any]]]],
    metric: str = "accuracy",
    title: str | None = None,
) -> Axes:
    """`runs`: method to seed to the records of its run.

    The line is the mean over the seeds that have a round, the band spans from the least to the largest.
    """
    lines = {}
    for method, seeds in runs.items():
        by_round: dict[int, list[float]] = {}
        for records in seeds.values():
            for record in records:
                if record.get(metric) is not None:
                    by_round.setdefault(record["round"], []).append(record[metric])
        if by_round:
            lines[method] = line(by_round)
    if not lines:
        raise CelmError(f"cannot draw the curves: no round has {metric}")
    with look():
        return lines_figure(lines, Scale("round", metric.replace("_", " ")), heading_text(title))


def line(by_round: Mapping[int, Sequence[float]]) -> Line:
    rounds = sorted(by_round)
    mean = np.array([math.fsum(by_round[r]) / len(by_round[r]) for r in rounds])
    low = np.array([min(by_round[r]) for r in rounds])
    high = np.array([max(by_round[r]) for r in rounds])
    several = any(len(values) > 1 for values in by_round.values())
    return Line(np.array(rounds, dtype=np.float64), mean, (low, high) if several else None, few(mean))
