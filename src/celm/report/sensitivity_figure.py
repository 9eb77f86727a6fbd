"""Accuracy over the probe's number of steps L and its step size (the paper's L x lr heatmap)."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from matplotlib.axes import Axes

from celm.base.errors import CelmError
from celm.report.heatmap import heatmap
from celm.report.sheet import heading_text
from celm.report.style import look, save_figure

__all__ = ["save_figure", "sensitivity_figure"]


def sensitivity_figure(accuracy: Mapping[tuple[int, float], float], title: str | None = None) -> Axes:
    """Heatmap of `accuracy`: (steps, step size) to a fraction, shown in percent; the colours span its range."""
    if not accuracy:
        raise CelmError("cannot draw the grid: it is empty")
    steps, rates = sorted({key[0] for key in accuracy}), sorted({key[1] for key in accuracy})
    missing = [(s, r) for s in steps for r in rates if (s, r) not in accuracy]
    if missing:
        raise CelmError(f"cannot draw the grid: no figure for L = {missing[0][0]}, lr = {missing[0][1]:g}")
    table = np.array([[accuracy[s, r] for r in rates] for s in steps], dtype=np.float64)
    if not np.isfinite(table).all():
        raise CelmError("cannot draw the grid: a number is not finite")
    with look():
        return heatmap(
            table,
            [str(s) for s in steps],
            [f"{r:g}" for r in rates],
            title=heading_text(title),
            across="learning rate of the probe",
            down="steps L",
            key="accuracy, %",
            shown=lambda value: f"{100 * value:.1f}",
            low=float(table.min()) - 1e-9,
            largest=0.55,
        )
