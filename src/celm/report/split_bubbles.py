"""Bubble plot of a split: the samples of each client and class, with totals at the margins."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from matplotlib.axes import Axes

from celm.report.figure_layout import (
    EDGE,
    GAP,
    MIN_READABLE_CELL,
    SMALL_TEXT_SIZE,
    FigureLayout,
    Matrix,
    cell_size,
    class_labels,
    client_class_matrix,
    draw_bubbles,
    fit_column_labels,
    format_title,
    label_columns,
    label_rows,
)
from celm.report.formatting import printable_line
from celm.report.style import MUTED, PALETTE, figure_style

_TOP_BAR, _RIGHT_BAR, _MAX_CELL = 0.6, 0.95, 0.5
"""Inches: the longest bar at the top and at the right, the largest cell."""
_BUBBLE_FILL = 0.92
"""Diameter of the largest bubble, as a fraction of its cell."""
_BUBBLE_COLOUR, _BAR_COLOUR = PALETTE[0], "#B4CDE1"


def split_figure(
    counts: Mapping[str, Sequence[int]],
    class_names: Sequence[str] | None = None,
    title: str | None = None,
) -> Axes:
    """Draw `counts`, client name to the number of samples of each class, as bubbles (the paper's Fig. 2).

    The area of a bubble is proportional to the number of samples; a cell without samples is empty. Bars at the
    top are totals per class, bars at the right totals per client. Returns the axes of the bubbles.
    """
    subject = "the split"
    table = client_class_matrix(counts, subject)
    classes = class_labels(class_names, table.shape[1], subject)
    with figure_style():
        return _draw_split(table, [printable_line(name) for name in counts], classes, format_title(title))


def _draw_split(table: Matrix, clients: list[str], classes: list[str], title: str | None) -> Axes:
    rows, columns = table.shape
    by_class, by_client = table.sum(axis=0), table.sum(axis=1)
    class_totals, client_totals = ([f"{total:,.0f}" for total in totals] for totals in (by_class, by_client))
    layout = FigureLayout()
    cell_width, cell_height = cell_size(columns, 11.0, _MAX_CELL), cell_size(rows, 8.0, _MAX_CELL)
    width, height = columns * cell_width, rows * cell_height
    tick_labels = fit_column_labels(layout, classes, cell_width)
    total_width, total_height = layout.text_size(class_totals, SMALL_TEXT_SIZE)
    upright = total_width > 0.95 * cell_width
    left_margin = EDGE + max(GAP + layout.text_size(clients)[0], tick_labels.overhang - cell_width / 2)
    bottom_margin = EDGE + layout.text_size(["class"])[1] + GAP + tick_labels.height
    top_margin = GAP + _TOP_BAR + GAP + (total_width if upright else total_height)
    right_margin = GAP + _RIGHT_BAR + GAP + layout.text_size(client_totals, SMALL_TEXT_SIZE)[0] + EDGE
    layout.resize(
        left_margin + width + right_margin,
        bottom_margin + height + top_margin + layout.title_height(title) + EDGE,
        title,
    )

    bubble_axes = layout.add_axes(left_margin, bottom_margin, width, height)
    largest = max(1, int(table.max()))
    max_area = (_BUBBLE_FILL * min(cell_width, cell_height) * 72) ** 2
    draw_bubbles(bubble_axes, table / largest * max_area, _BUBBLE_COLOUR)
    label_rows(bubble_axes, clients, cell_height)
    label_columns(bubble_axes, classes, cell_width, tick_labels)
    layout.text(left_margin + width / 2, EDGE, "class", ha="center")

    top_axes = layout.add_axes(left_margin, bottom_margin + height + GAP, width, _TOP_BAR)
    bars = top_axes.bar(range(columns), by_class, width=0.7, color=_BAR_COLOUR)
    top_axes.set(xlim=bubble_axes.get_xlim(), ylim=(0, max(1, by_class.max())))
    label_style: dict[str, Any] = {"padding": 0.5 * GAP * 72, "size": SMALL_TEXT_SIZE, "color": MUTED}
    if cell_width >= 0.6 * MIN_READABLE_CELL:
        top_axes.bar_label(bars, class_totals, rotation=90 if upright else 0, **label_style)

    right_axes = layout.add_axes(left_margin + width + GAP, bottom_margin, _RIGHT_BAR, height)
    bar_height = 0.7 if cell_height < _MAX_CELL else 0.56
    bars = right_axes.barh(range(rows), by_client, height=bar_height, color=_BAR_COLOUR)
    right_axes.set(ylim=bubble_axes.get_ylim(), xlim=(0, max(1, by_client.max())))
    if cell_height >= 0.6 * MIN_READABLE_CELL:
        right_axes.bar_label(bars, client_totals, **label_style)

    key_axes = layout.add_axes(left_margin + width + GAP, bottom_margin + height + GAP, _RIGHT_BAR, _TOP_BAR)
    _draw_size_key(key_axes, largest, max_area)
    return bubble_axes


def _draw_size_key(axes: Axes, largest: int, max_area: float) -> None:
    """Draw one or two bubbles of known size, with their round numbers of samples."""
    numbers = [number for number in (_round_down(largest), _round_down(largest / 8)) if number > 0]
    diameters = [math.sqrt(max_area * number / largest) for number in numbers]
    axes.set(xlim=(0, _RIGHT_BAR * 72), ylim=(0, _TOP_BAR * 72))
    widest = max(diameters)
    base = 0.0
    for number, diameter in zip(reversed(numbers), reversed(diameters), strict=True):
        unit = "" if number < numbers[0] else " sample" if number == 1 else " samples"
        entry_height = max(diameter, SMALL_TEXT_SIZE * 1.3)
        y = base + entry_height / 2
        axes.scatter(
            [widest / 2], [y], s=[diameter**2], c="none", edgecolors=MUTED, linewidths=0.8, clip_on=False
        )
        axes.text(widest + 5, y, f"{number:,}{unit}", size=SMALL_TEXT_SIZE, color=MUTED, va="center_baseline")
        base += entry_height + 3


def _round_down(number: float) -> int:
    """Return the largest of 1, 2, 5, 10, 20, 50, ... up to `number`, or 0 if `number` is below 1.

    >>> _round_down(5999), _round_down(750), _round_down(0.4)
    (5000, 500, 0)
    """
    if number < 1:
        return 0
    power = 10 ** int(math.log10(number))
    return int(max(step * power for step in (1, 2, 5) if step * power <= number))
