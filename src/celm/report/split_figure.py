"""Who holds what: a bubble for each client and class, with the totals on the margins (the paper's Fig. 2)."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from matplotlib.axes import Axes

from celm.report.sheet import (
    EDGE,
    GAP,
    READABLE,
    SMALL,
    TEXT,
    Matrix,
    Sheet,
    bubbles,
    cell,
    class_labels,
    heading_text,
    label_columns,
    label_rows,
    matrix,
    names_below,
)
from celm.report.style import MUTED, PALETTE, look, plain, save_figure

__all__ = ["save_figure", "split_figure"]

TOP_BAR, RIGHT_BAR, CELL = 0.6, 0.95, 0.5
"""Inches: the longest bar on top and on the right, the largest cell."""
FILL = 0.92  # the largest bubble's diameter, as a part of its cell
BUBBLES, BARS = PALETTE[0], "#B4CDE1"


def split_figure(
    counts: Mapping[str, Sequence[int]],
    class_names: Sequence[str] | None = None,
    title: str | None = None,
) -> Axes:
    """Bubble plot of `counts`: client name to the number of samples of each class.

    The area of a bubble is proportional to the number of samples; a cell without samples has none. Bars on
    top are totals per class, bars on the right totals per client. Returns the axes of the bubbles.
    """
    what = "the split"
    table = matrix(counts, what)
    classes = class_labels(class_names, table.shape[1], what)
    with look():
        return draw(table, [plain(name) for name in counts], classes, heading_text(title))


def draw(table: Matrix, clients: list[str], classes: list[str], title: str | None) -> Axes:
    rows, columns = table.shape
    by_class, by_client = table.sum(axis=0), table.sum(axis=1)
    class_totals, client_totals = ([f"{total:,.0f}" for total in totals] for totals in (by_class, by_client))
    sheet = Sheet()
    wide, high = cell(columns, 11.0, CELL), cell(rows, 8.0, CELL)
    width, height = columns * wide, rows * high
    names = names_below(sheet, classes, wide)
    total_width, total_height = sheet.extent(class_totals, SMALL)
    upright = total_width > 0.95 * wide
    left = EDGE + max(GAP + sheet.extent(clients)[0], names.beyond - wide / 2)
    below = EDGE + sheet.extent(["class"])[1] + GAP + names.below
    top = GAP + TOP_BAR + GAP + (total_width if upright else total_height)
    right = GAP + RIGHT_BAR + GAP + sheet.extent(client_totals, SMALL)[0] + EDGE
    sheet.resize(left + width + right, below + height + top + sheet.heading(title) + EDGE, title)

    middle = sheet.place(left, below, width, height)
    largest = max(1, int(table.max()))
    area = (FILL * min(wide, high) * 72) ** 2  # of the largest bubble
    bubbles(middle, table / largest * area, BUBBLES)
    label_rows(middle, clients, high)
    label_columns(middle, classes, wide, names)
    sheet.text(left + width / 2, EDGE, "class", size=TEXT, ha="center")

    over = sheet.place(left, below + height + GAP, width, TOP_BAR)
    bars = over.bar(range(columns), by_class, width=0.7, color=BARS)
    over.set(xlim=middle.get_xlim(), ylim=(0, max(1, by_class.max())))
    told: dict[str, Any] = {"padding": 0.5 * GAP * 72, "size": SMALL, "color": MUTED}
    if wide >= 0.6 * READABLE:
        over.bar_label(bars, class_totals, rotation=90 if upright else 0, **told)

    beside = sheet.place(left + width + GAP, below, RIGHT_BAR, height)
    bars = beside.barh(range(rows), by_client, height=0.7 if high < CELL else 0.56, color=BARS)
    beside.set(ylim=middle.get_ylim(), xlim=(0, max(1, by_client.max())))
    if high >= 0.6 * READABLE:
        beside.bar_label(bars, client_totals, **told)

    key(sheet.place(left + width + GAP, below + height + GAP, RIGHT_BAR, TOP_BAR), largest, area)
    return middle


def key(axes: Axes, largest: int, area: float) -> None:
    """In the corner: what a bubble of this size stands for, for one or two round numbers."""
    shown = [number for number in (rounded(largest), rounded(largest / 8)) if number > 0]
    height, width = TOP_BAR * 72, RIGHT_BAR * 72
    diameters = [math.sqrt(area * number / largest) for number in shown]
    axes.set(xlim=(0, width), ylim=(0, height))
    across = max(diameters)
    base = 0.0
    for number, diameter in zip(reversed(shown), reversed(diameters), strict=True):
        unit = "" if number < shown[0] else " sample" if number == 1 else " samples"
        slot = max(diameter, SMALL * 1.3)
        middle = base + slot / 2
        axes.scatter(
            [across / 2], [middle], s=[diameter**2], c="none", edgecolors=MUTED, linewidths=0.8, clip_on=False
        )
        axes.text(across + 5, middle, f"{number:,}{unit}", size=SMALL, color=MUTED, va="center_baseline")
        base += slot + 3


def rounded(number: float) -> int:
    """The largest of 1, 2, 5, 10, 20, 50, ... up to `number`, 0 if there is none.

    >>> rounded(5999), rounded(750), rounded(0.4)
    (5000, 500, 0)
    """
    if number < 1:
        return 0
    power = 10 ** int(math.log10(number))
    return int(max(step * power for step in (1, 2, 5) if step * power <= number))
