"""Rates of free-rider detection over the threshold on z-scores: false positives (the paper's curves), or true ones."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.axes import Axes

from celm.base.errors import CelmError
from celm.report.lines import Line, Scale, lines_figure
from celm.report.sheet import heading_text
from celm.report.style import look, save_figure

__all__ = ["save_figure", "threshold_figure"]


def threshold_figure(
    thresholds: Sequence[float],
    rates: Mapping[str, Sequence[float]],
    title: str | None = None,
    up: str = "false-positive rate",
) -> Axes:
    """`rates`: method to a rate for each threshold; `up` says which."""
    if not rates or any(len(row) != len(thresholds) for row in rates.values()) or not len(thresholds):
        raise CelmError("cannot draw the rates: every method needs one for every threshold")
    across = np.array(thresholds, dtype=np.float64)
    order = np.argsort(across)
    lines = {
        name: Line(across[order], np.array(row, dtype=np.float64)[order], mark=len(across) == 1)
        for name, row in rates.items()
    }
    scale = Scale("threshold on the z-score", up, whole=False, limits=(0.0, 1.0))
    with look():
        return lines_figure(lines, scale, heading_text(title))
