"""Client x class heatmap: one hue, the more the stronger, so that it reads on light and on dark ground."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.patches import Rectangle
from numpy.typing import NDArray

from celm.report.sheet import (
    EDGE,
    GAP,
    SMALL,
    TRUTH,
    Matrix,
    Sheet,
    cell,
    label_columns,
    label_rows,
    names_below,
    outline,
)
from celm.report.style import INK, LINE, MUTED

HEAT = "#0B4F8A"
CELL, WITH_NUMBERS = 0.38, 0.3
"""Inches: the largest cell, the smallest in which a number is readable."""
KEY_WIDTH, KEY_HEIGHT, KEY_STEPS = 1.0, 0.1, 5
STRONG = 0.55
"""Above this part of the largest value a cell is dark enough for white text."""


def heatmap(
    table: Matrix,
    rows: Sequence[str],
    columns: Sequence[str],
    *,
    title: str | None,
    across: str,
    key: str,
    shown: Callable[[float], str],
    low: float = 0.0,
    held: NDArray[np.bool_] | None = None,
    down: str | None = None,
    highest: float | None = None,
    largest: float = CELL,
) -> Axes:
    """Cells from `low` (no colour) to the largest value; a cell at zero has no number. Names are drawn as given."""
    height, width = table.shape
    wide, high = cell(width, 11.0, largest), cell(height, 6.0, largest)
    sheet = Sheet()
    names = names_below(sheet, columns, wide)
    sideways = 0.0 if down is None else sheet.extent([down])[1] + GAP
    left = max(EDGE + sideways + sheet.extent(rows)[0] + GAP, EDGE + names.beyond - wide / 2)
    below = EDGE + names.below + GAP + sheet.extent([across])[1]
    legend = f"{key}{'' if held is None else '   '}"
    note = "" if held is None else "truly held"
    key_width = KEY_WIDTH + sheet.extent([legend], SMALL)[0] + sheet.extent([note], SMALL)[0] + 0.6 + 6 * GAP
    top = GAP * 1.5 + KEY_HEIGHT + GAP
    full_width = max(left + width * wide, left + key_width) + EDGE
    full_height = below + height * high + top + sheet.heading(title) + EDGE
    sheet.resize(full_width, full_height, title)

    axes = sheet.place(left, below, width * wide, height * high)
    most = float(table.max()) if highest is None else highest
    strength = np.clip((table - low) / (most - low), 0, 1) if most > low else np.zeros_like(table)
    for (y, x), value in np.ndenumerate(table):
        axes.add_patch(
            Rectangle((x - 0.5, y - 0.5), 1, 1, facecolor=HEAT, alpha=round(float(strength[y, x]), 3), lw=0)
        )
        if min(wide, high) >= WITH_NUMBERS and (value > 0 or low != 0):
            strong = strength[y, x] > STRONG
            axes.text(
                x, y, shown(value), size=SMALL, ha="center", va="center_baseline", zorder=4,
                color="white" if strong else INK, parse_math=False,
            )  # fmt: skip
    axes.hlines(np.arange(height + 1) - 0.5, -0.5, width - 0.5, colors=LINE, linewidths=0.8, zorder=1)
    axes.vlines(np.arange(width + 1) - 0.5, -0.5, height - 0.5, colors=LINE, linewidths=0.8, zorder=1)
    if held is not None:
        outline(axes, held)
    axes.set(xlim=(-0.5, width - 0.5), ylim=(height - 0.5, -0.5))
    label_rows(axes, rows, high)
    label_columns(axes, columns, wide, names)
    sheet.text(left + width * wide / 2, EDGE, across, ha="center")
    if down is not None:
        sheet.text(EDGE, below + height * high / 2, down, rotation=90, va="center", ha="left")
    draw_key(sheet, left, below + height * high + GAP * 1.5, legend, shown(low), shown(most), note)
    return axes


def draw_key(sheet: Sheet, x: float, y: float, text: str, least: str, most: str, note: str) -> None:
    """A small scale over the grid: from least to most, what it measures, and what a frame means."""
    step = KEY_WIDTH / KEY_STEPS / 2
    sheet.text(x, y, least, size=SMALL)
    x += sheet.extent([least], SMALL)[0] + GAP / 2
    bar = sheet.place(x, y, step * KEY_STEPS, KEY_HEIGHT)
    for part in range(KEY_STEPS):
        bar.add_patch(Rectangle((part, 0), 1, 1, facecolor=HEAT, alpha=part / (KEY_STEPS - 1), lw=0))
    bar.add_patch(Rectangle((0, 0), KEY_STEPS, 1, fill=False, edgecolor=LINE, lw=0.8, clip_on=False))
    bar.set(xlim=(0, KEY_STEPS), ylim=(0, 1))
    x += step * KEY_STEPS + GAP / 2
    sheet.text(x, y, f"{most}  {text}", size=SMALL)
    if note:
        x += sheet.extent([f"{most}  {text}"], SMALL)[0] + 2.5 * GAP
        frame = sheet.place(x, y, KEY_HEIGHT, KEY_HEIGHT)
        frame.add_patch(Rectangle((0, 0), 1, 1, fill=False, edgecolor=TRUTH, lw=1.4, clip_on=False))
        sheet.text(x + KEY_HEIGHT + GAP, y, note, size=SMALL, color=MUTED)
