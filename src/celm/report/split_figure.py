"""Who holds what: a bubble for each client and class, with the totals on the margins (the paper's Fig. 2)."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.font_manager import FontProperties
from numpy.typing import NDArray

from celm.base.errors import CelmError
from celm.report.style import INK, LINE, MUTED, PALETTE, look, plain, save_figure

__all__ = ["save_figure", "split_figure"]

TEXT, SMALL, HEADING = 8.5, 7.0, 10.5  # font sizes in points
# Inches: between neighbours, around the figure, the longest bar on top and on the right, the largest cell,
# the smallest cell with a readable label, the widest and highest grid.
GAP, EDGE, TOP_BAR, RIGHT_BAR, CELL, READABLE, GRID = 0.09, 0.15, 0.6, 0.95, 0.5, 0.25, 40.0
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
    table = checked(counts)
    classes = [str(k) for k in range(table.shape[1])] if class_names is None else list(class_names)
    if len(classes) != table.shape[1]:
        raise CelmError(f"cannot draw the split: {len(classes)} class names for {table.shape[1]} classes")
    with look():
        return draw(
            table,
            [plain(name) for name in counts],
            [plain(name) for name in classes],
            None if title is None else plain(title, longest=200),
        )


def checked(counts: Mapping[str, Sequence[int]]) -> NDArray[np.int64]:
    lengths = {len(row) for row in counts.values()}
    if len(lengths) != 1 or lengths == {0}:
        raise CelmError("cannot draw the split: every client needs a count for every class")
    table = np.array([list(row) for row in counts.values()], dtype=np.int64)
    if (table < 0).any():
        raise CelmError("cannot draw the split: a count is negative")
    return table


def draw(table: NDArray[np.int64], clients: list[str], classes: list[str], title: str | None) -> Axes:
    rows, columns = table.shape
    by_class, by_client = table.sum(axis=0), table.sum(axis=1)
    figure = Figure()
    canvas: Any = FigureCanvasAgg(figure)  # Any: what it gives to measure texts with is untyped

    def extent(texts: Sequence[str], size: float, weight: str = "normal") -> tuple[float, float]:
        """Width and height in inches of the largest of some texts."""
        font = FontProperties(size=size, weight=weight)
        measured = [canvas.get_renderer().get_text_width_height_descent(text, font, False) for text in texts]
        return max(m[0] for m in measured) / figure.dpi, max(m[1] for m in measured) / figure.dpi

    # The figure grows around its grid, by what the texts need, so nothing overlaps whatever the names are.
    wide, high = cell(columns, 11.0), cell(rows, 8.0)
    name_width, name_height = extent(classes, TEXT)
    total_width, total_height = extent([f"{total:,}" for total in by_class], SMALL)
    tilt = 0 if name_width < 0.92 * wide else 45 if wide >= READABLE * 0.8 else 90
    slope = math.radians(tilt)
    upright = total_width > 0.95 * wide
    left = EDGE + GAP + extent(clients, TEXT)[0]
    left = max(left, EDGE + name_width * math.cos(slope) - wide / 2 if tilt == 45 else 0)
    below = EDGE + extent(["class"], TEXT)[1] + 2 * GAP
    below += name_width * math.sin(slope) + name_height * (math.cos(slope) or 0.5)
    top = GAP + TOP_BAR + GAP + (total_width if upright else total_height)
    right = GAP + RIGHT_BAR + GAP + extent([f"{total:,}" for total in by_client], SMALL)[0] + EDGE
    heading = 0.0 if title is None else extent([title], HEADING, "bold")[1] + 2 * GAP
    width, height = columns * wide, rows * high
    full_width = left + width + right
    if title is not None:
        full_width = max(full_width, extent([title], HEADING, "bold")[0] + 2 * EDGE)
    full_height = below + height + top + heading + EDGE
    figure.set_size_inches(full_width, full_height)

    def placed(x: float, y: float, w: float, h: float) -> Axes:
        axes = figure.add_axes((x / full_width, y / full_height, w / full_width, h / full_height))
        axes.spines[:].set_visible(False)
        axes.set(xticks=[], yticks=[])
        return axes

    middle = placed(left, below, width, height)
    largest = max(1, int(table.max()))
    area = (FILL * min(wide, high) * 72) ** 2  # of the largest bubble, in points squared, as scatter wants it
    y, x = np.nonzero(table)
    middle.hlines(range(rows), -0.5, columns - 0.5, colors=LINE, linewidths=0.8, zorder=0)
    middle.vlines(range(columns), -0.5, rows - 0.5, colors=LINE, linewidths=0.8, zorder=0)
    middle.scatter(x, y, s=table[y, x] / largest * area, color=BUBBLES, linewidths=0)
    middle.set(xlim=(-0.5, columns - 0.5), ylim=(rows - 0.5, -0.5))
    every = math.ceil(0.6 * READABLE / high)
    middle.set_yticks(range(0, rows, every), clients[::every], parse_math=False, size=TEXT)
    middle.tick_params(axis="y", pad=GAP * 72)
    every = math.ceil(0.6 * READABLE / wide)
    middle.set_xticks(
        range(0, columns, every),
        classes[::every],
        parse_math=False,
        size=TEXT,
        rotation=tilt,
        rotation_mode="anchor" if tilt else "default",
        ha="right" if tilt else "center",
        va={0: "top", 45: "top", 90: "center"}[tilt],
    )
    middle.tick_params(axis="x", pad=GAP * 72)
    figure.text(
        (left + width / 2) / full_width, EDGE / full_height, "class", color=MUTED, size=TEXT, ha="center"
    )

    over = placed(left, below + height + GAP, width, TOP_BAR)
    bars = over.bar(range(columns), by_class, width=0.7, color=BARS)
    over.set(xlim=middle.get_xlim(), ylim=(0, max(1, by_class.max())))
    if wide >= 0.6 * READABLE:
        over.bar_label(
            bars,
            [f"{total:,}" for total in by_class],
            padding=0.5 * GAP * 72,
            size=SMALL,
            color=MUTED,
            rotation=90 if upright else 0,
        )

    beside = placed(left + width + GAP, below, RIGHT_BAR, height)
    bars = beside.barh(range(rows), by_client, height=0.7 if high < CELL else 0.56, color=BARS)
    beside.set(ylim=middle.get_ylim(), xlim=(0, max(1, by_client.max())))
    if high >= 0.6 * READABLE:
        beside.bar_label(
            bars, [f"{total:,}" for total in by_client], padding=0.5 * GAP * 72, size=SMALL, color=MUTED
        )

    key(placed(left + width + GAP, below + height + GAP, RIGHT_BAR, TOP_BAR), largest, area)
    if title is not None:
        figure.text(
            EDGE / full_width,
            1 - EDGE / full_height,
            title,
            size=HEADING,
            weight="bold",
            va="top",
            color=INK,
            parse_math=False,
        )
    return middle


def cell(number: int, comfortable: float) -> float:
    """Inches of a cell: as large as fits a comfortable grid, readable if at all possible."""
    return min(CELL, max(READABLE, comfortable / number), GRID / number)


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
