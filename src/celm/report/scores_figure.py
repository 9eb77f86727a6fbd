"""Scores of the clients as bars, with the standard errors of the probe and the part that everybody would have."""

from __future__ import annotations

from collections.abc import Collection, Mapping

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import FuncFormatter, MaxNLocator

from celm.base.errors import CelmError
from celm.report.sheet import EDGE, GAP, SMALL, TRUTH, Sheet, cell, heading_text, label_rows
from celm.report.style import INK, LINE, MUTED, PALETTE, look, plain, save_figure

__all__ = ["save_figure", "scores_figure"]

WIDTH, ROW = 3.6, 0.3
"""Inches."""


def scores_figure(
    scores: Mapping[str, float],
    errors: Mapping[str, float | None] | None = None,
    flagged: Collection[str] = (),
    title: str | None = None,
) -> Axes:
    """A bar a client, red where it is flagged; a dashed line at an equal part."""
    if not scores:
        raise CelmError("cannot draw the scores: there are none")
    values = np.array(list(scores.values()), dtype=np.float64)
    spread = np.array([(errors or {}).get(name) or 0.0 for name in scores], dtype=np.float64)
    if not (np.isfinite(values).all() and np.isfinite(spread).all()):
        raise CelmError("cannot draw the scores: a number is not finite")
    names = [plain(name) for name in scores]
    equal = 1 / len(values)
    with look():
        sheet = Sheet()
        high = cell(len(values), 8.0, ROW)
        left = EDGE + sheet.extent(names)[0] + 2 * GAP
        below = EDGE + 2 * sheet.extent(["100 %"], SMALL)[1] + 3 * GAP
        height = high * len(values)
        top = heading_text(title)
        sheet.resize(left + WIDTH + 2 * EDGE, below + height + sheet.heading(top) + EDGE + GAP, top)
        axes = sheet.place(left, below, WIDTH, height)
        colours = [TRUTH if name in flagged else PALETTE[0] for name in scores]
        axes.barh(range(len(values)), values, height=0.62, color=colours, zorder=2)
        if spread.any():
            axes.errorbar(
                values,
                range(len(values)),
                xerr=spread,
                fmt="none",
                ecolor=INK,
                elinewidth=0.9,
                capsize=2,
                zorder=3,
            )
        axes.axvline(equal, color=MUTED, linewidth=0.9, linestyle=(0, (4, 2)), zorder=4)
        axes.grid(axis="x", color=LINE)
        most = max(float((values + spread).max()), equal)
        axes.set(xlim=(0, 1.08 * most), ylim=(len(values) - 0.5, -0.5))
        axes.xaxis.set_major_locator(MaxNLocator(5, steps=[1, 2, 5, 10]))
        axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{100 * value:.3g} %"))
        axes.tick_params(axis="x", labelsize=SMALL, labelcolor=INK)
        label_rows(axes, names, high)
        note = "score; whiskers: standard error of the probe; dashed: an equal part"
        sheet.text(left, EDGE, note, size=SMALL)
    return axes
