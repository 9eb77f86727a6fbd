"""Accuracy on every class, a dot for each method."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import FuncFormatter

from celm.base.errors import CelmError
from celm.report.sheet import (
    EDGE,
    GAP,
    SMALL,
    TEXT,
    Sheet,
    cell,
    class_labels,
    heading_text,
    label_columns,
    names_below,
)
from celm.report.style import INK, LINE, PALETTE, look, plain, save_figure

__all__ = ["per_class_figure", "save_figure"]

HEIGHT, CELL, DOT = 2.1, 0.42, 5.0
MARKERS = ("o", "D", "s", "^", "v", "P", "X", "<")
"""Methods differ in shape as well as in colour."""


def per_class_figure(
    per_class: Mapping[str, Sequence[float | None]],
    class_names: Sequence[str] | None = None,
    rare: Sequence[int] = (),
    title: str | None = None,
) -> Axes:
    """`per_class`: method to accuracy by class (None or NaN: not tested). `rare` classes stand on a tinted ground."""
    lengths = {len(row) for row in per_class.values()}
    if len(lengths) != 1 or lengths == {0}:
        raise CelmError("cannot draw accuracy by class: every method needs a number for every class")
    columns = lengths.pop()
    classes = class_labels(class_names, columns, "accuracy by class")
    heading = heading_text(title)
    with look():
        sheet = Sheet()
        wide = cell(columns, 11.0, CELL)
        names = names_below(sheet, classes, wide)
        left = max(EDGE + sheet.extent(["100 %"])[0] + 2 * GAP, EDGE + names.beyond - wide / 2)
        below = EDGE + names.below + GAP + sheet.extent(["class"])[1]
        entries = [plain(name) for name in per_class] if len(per_class) > 1 else []
        entries += ["rare class"] if rare else []
        slots = [sheet.extent([entry], SMALL)[0] + 0.2 + 2 * GAP for entry in entries]
        wrap = max(columns * wide, 3.0)
        rows = lines_of(slots, wrap)
        row_height = 0.17
        key = len(rows) * row_height + GAP if rows else 0.0
        full_width = (
            left + max(columns * wide, max((sum(slots[i] for i in row) for row in rows), default=0)) + EDGE
        )
        sheet.resize(full_width, below + HEIGHT + GAP + key + sheet.heading(heading) + EDGE, heading)
        axes = sheet.place(left, below, columns * wide, HEIGHT)
        axes.set(xlim=(-0.5, columns - 0.5), ylim=(-0.04, 1.04))
        for k in rare:
            axes.axvspan(k - 0.5, k + 0.5, color=PALETTE[1], alpha=0.18, linewidth=0, zorder=0)
        axes.grid(axis="y")
        methods = len(per_class)
        for number, row in enumerate(per_class.values()):
            shift = (number - (methods - 1) / 2) * min(0.12, 0.7 / methods)
            y = np.array([math.nan if value is None else value for value in row], dtype=np.float64)
            x = np.arange(columns) + shift
            if methods == 1:
                axes.vlines(x, 0, np.nan_to_num(y), colors=LINE, linewidths=2, zorder=1)
            axes.plot(
                x,
                y,
                linestyle="none",
                marker=MARKERS[number % len(MARKERS)],
                markersize=DOT,
                markeredgewidth=0,
                color=PALETTE[number % 7],
                clip_on=False,
                zorder=3,
            )
        axes.set_yticks([0, 0.25, 0.5, 0.75, 1])
        axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{100 * value:.0f} %"))
        axes.tick_params(axis="y", labelsize=TEXT, labelcolor=INK)
        label_columns(axes, classes, wide, names)
        sheet.text(left + columns * wide / 2, EDGE, "class", ha="center")
        top = below + HEIGHT + GAP + key
        for line, row_ in enumerate(rows):
            x0 = left
            for entry in row_:
                mark = sheet.place(x0, top - (line + 1) * row_height, 0.14, row_height * 0.75)
                mark.set(xlim=(0, 1), ylim=(0, 1))
                if rare and entry == len(entries) - 1:
                    mark.axvspan(0, 1, color=PALETTE[1], alpha=0.35, linewidth=0)
                else:
                    mark.plot(
                        [0.5], [0.5], MARKERS[entry % len(MARKERS)], color=PALETTE[entry % 7], markersize=DOT,
                        markeredgewidth=0, clip_on=False,
                    )  # fmt: skip
                sheet.text(
                    x0 + 0.2,
                    top - (line + 1) * row_height + row_height * 0.375,
                    entries[entry],
                    size=SMALL,
                    va="center_baseline",
                )
                x0 += slots[entry]
    return axes


def lines_of(slots: Sequence[float], width: float) -> list[list[int]]:
    """Entries of a legend broken into lines.

    >>> lines_of([1.0, 1.0, 1.0], 2.5)
    [[0, 1], [2]]
    """
    rows: list[list[int]] = []
    used = 0.0
    for number, slot in enumerate(slots):
        if not rows or used + slot > width:
            rows.append([])
            used = 0.0
        rows[-1].append(number)
        used += slot
    return rows
