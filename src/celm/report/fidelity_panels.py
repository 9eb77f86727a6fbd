"""Panels of the true beside the estimated distribution over clients and classes, with both marginals."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import FuncFormatter, MaxNLocator

from celm.base.errors import CelmError
from celm.report.figure_layout import (
    EDGE,
    GAP,
    SMALL_TEXT_SIZE,
    FigureLayout,
    Matrix,
    TickLabels,
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
from celm.report.style import INK, PALETTE, figure_style

_TRUE_COLOUR, _ESTIMATED_COLOUR = "#8A94A0", PALETTE[0]
_BUBBLE_FILL = 0.94
"""Diameter of the largest bubble, as a fraction of its cell."""
_MAX_CELL, _MIN_GRID_SPACE, _MAX_SIDE_BY_SIDE_WIDTH = 0.32, 1.6, 4.6
"""Inches: the largest cell, the least space for a grid, the widest grid that has bars beside it."""
_MIN_BAR_HEIGHT, _MAX_BAR_HEIGHT, _MIN_BARS_WIDTH, _MAX_BAR_PAIR_WIDTH = 1.15, 2.0, 3.0, 0.8
"""Inches: bars of the sums."""

_Corner = tuple[float, float]


def fidelity_figure(
    counts: Mapping[str, Sequence[float]],
    estimated: Mapping[str, Sequence[float]],
    class_names: Sequence[str] | None = None,
    title: str | None = None,
) -> Axes:
    """Draw the true and the estimated distribution with their marginals (the paper's fidelity panels).

    `counts`: client to samples by class; `estimated`: client to its estimate by class, such as the evidence. A client
    that is missing in one of them has zeros there. Each is divided by its total. Bubbles, by area and on one
    scale: (a) the true, (b) the estimated distribution. Bars, true beside estimated: (c) sums over classes,
    (d) sums over clients. Returns the axes of (a).
    """
    subject = "the distributions"
    clients = list(dict.fromkeys([*counts, *estimated]))
    lengths = {len(row) for table in (counts, estimated) for row in table.values()}
    if len(lengths) > 1:
        raise CelmError(f"cannot draw {subject}: true and estimated have different numbers of classes")
    zeros = [0.0] * max(lengths, default=0)
    true, estimate = (
        _normalise_total(
            client_class_matrix({name: table.get(name, zeros) for name in clients}, subject), subject
        )
        for table in (counts, estimated)
    )
    classes = class_labels(class_names, true.shape[1], subject)
    with figure_style():
        return _draw_panels(
            true, estimate, [printable_line(name) for name in clients], classes, format_title(title)
        )


def _normalise_total(table: Matrix, subject: str) -> Matrix:
    total = float(table.sum())
    if total <= 0:
        raise CelmError(f"cannot draw {subject}: one of them is zero everywhere")
    return table / total


@dataclass(frozen=True)
class _Bars:
    """Size in inches and labels of the bar panels (c) and (d)."""

    width: float
    client_pair_width: float
    class_pair_width: float
    client_labels: TickLabels
    class_labels: TickLabels

    @property
    def overhang(self) -> float:
        """Inches that the labels need to the left of the bars."""
        return max(
            self.client_labels.overhang - self.client_pair_width / 2,
            self.class_labels.overhang - self.class_pair_width / 2,
        )

    @property
    def labels_height(self) -> float:
        return max(self.client_labels.height, self.class_labels.height) + GAP


def _draw_panels(
    true: Matrix, estimate: Matrix, clients: list[str], classes: list[str], title: str | None
) -> Axes:
    rows, columns = true.shape
    layout = FigureLayout()
    cell_width, cell_height = cell_size(columns, 11.0, _MAX_CELL), cell_size(rows, 8.0, _MAX_CELL)
    width, height = columns * cell_width, rows * cell_height
    bars_width = max(width, _MIN_BARS_WIDTH)
    client_pair_width = min(_MAX_BAR_PAIR_WIDTH, bars_width / rows)
    class_pair_width = min(_MAX_BAR_PAIR_WIDTH, bars_width / columns)
    bars = _Bars(
        bars_width,
        client_pair_width,
        class_pair_width,
        fit_column_labels(layout, clients, client_pair_width),
        fit_column_labels(layout, classes, class_pair_width),
    )
    grid_labels = fit_column_labels(layout, classes, cell_width)
    grid_overhang = max(layout.text_size(clients)[0] + GAP, grid_labels.overhang - cell_width / 2)
    arrange = _arrange_side_by_side if width <= _MAX_SIDE_BY_SIDE_WIDTH else _arrange_stacked
    grid_corners, bar_corners, bars_height = arrange(
        layout, (width, height), grid_overhang, grid_labels.height + GAP, bars, title
    )

    largest = max(float(true.max()), float(estimate.max()))
    max_area = (_BUBBLE_FILL * min(cell_width, cell_height) * 72) ** 2
    grids = []
    for caption, table, colour, (x, y) in zip(
        ("(a) true distribution", "(b) estimated distribution"),
        (true, estimate),
        (_TRUE_COLOUR, _ESTIMATED_COLOUR),
        grid_corners,
        strict=True,
    ):
        axes = layout.add_axes(x, y, width, height)
        draw_bubbles(axes, table / largest * max_area, colour)
        label_rows(axes, clients, cell_height)
        label_columns(axes, classes, cell_width, grid_labels)
        layout.text(x, y + height + GAP, caption, color=INK)
        grids.append(axes)
    client_axes = layout.add_axes(*bar_corners[0], bars_width, bars_height)
    _draw_bar_pairs(client_axes, true.sum(1), estimate.sum(1))
    label_columns(client_axes, clients, bars_width / rows, bars.client_labels)
    _draw_bar_caption(layout, bar_corners[0], bars_height, "(c) by client")
    class_axes = layout.add_axes(*bar_corners[1], class_pair_width * columns, bars_height)
    _draw_bar_pairs(class_axes, true.sum(0), estimate.sum(0))
    label_columns(class_axes, classes, class_pair_width, bars.class_labels)
    _draw_bar_caption(layout, bar_corners[1], bars_height, "(d) by class")
    return grids[0]


def _arrange_side_by_side(
    layout: FigureLayout,
    grid_size: tuple[float, float],
    grid_overhang: float,
    grid_labels_height: float,
    bars: _Bars,
    title: str | None,
) -> tuple[list[_Corner], list[_Corner], float]:
    """Size the figure for two rows of grid and bars. Return corners of grids and bars, and the bars' height."""
    width, height = grid_size
    caption_height, axis_width = _caption_height(layout), _axis_width(layout)
    bars_height = min(max(height, _MIN_BAR_HEIGHT), _MAX_BAR_HEIGHT)
    grid_left = EDGE + grid_overhang
    bars_left = grid_left + max(width, _MIN_GRID_SPACE) + 2.5 * GAP + max(axis_width, bars.overhang)
    row_height = max(height + grid_labels_height, bars_height + bars.labels_height) + caption_height
    layout.resize(
        bars_left + bars.width + EDGE, 1.5 * EDGE + 2 * row_height + layout.title_height(title), title
    )
    top = layout.height - layout.title_height(title) - EDGE / 2 - caption_height
    return (
        [(grid_left, top - row_height * i - height) for i in range(2)],
        [(bars_left, top - row_height * i - bars_height) for i in range(2)],
        bars_height,
    )


def _arrange_stacked(
    layout: FigureLayout,
    grid_size: tuple[float, float],
    grid_overhang: float,
    grid_labels_height: float,
    bars: _Bars,
    title: str | None,
) -> tuple[list[_Corner], list[_Corner], float]:
    """Size the figure for one column: two grids, then bars. Return the same values as `_arrange_side_by_side`."""
    height = grid_size[1]
    caption_height = _caption_height(layout)
    left = EDGE + max(grid_overhang, _axis_width(layout), bars.overhang)
    grid_step = height + grid_labels_height + caption_height
    bars_step = _MIN_BAR_HEIGHT + bars.labels_height + caption_height
    layout.resize(
        left + bars.width + EDGE,
        1.5 * EDGE + 2 * grid_step + 2 * bars_step + layout.title_height(title),
        title,
    )
    top = layout.height - layout.title_height(title) - EDGE / 2 - caption_height
    return (
        [(left, top - grid_step * i - height) for i in range(2)],
        [(left, top - 2 * grid_step - bars_step * i - _MIN_BAR_HEIGHT) for i in range(2)],
        _MIN_BAR_HEIGHT,
    )


def _caption_height(layout: FigureLayout) -> float:
    return layout.text_size(["(a)"])[1] + 2 * GAP


def _axis_width(layout: FigureLayout) -> float:
    return layout.text_size(["100 %"], SMALL_TEXT_SIZE)[0] + 2 * GAP


def _draw_bar_pairs(axes: Axes, true: Matrix, estimate: Matrix) -> None:
    """Draw bars of the true beside the estimated marginal."""
    axes.grid(axis="y")
    positions = np.arange(len(true))
    axes.bar(positions - 0.19, true, width=0.36, color=_TRUE_COLOUR, zorder=2)
    axes.bar(positions + 0.19, estimate, width=0.36, color=_ESTIMATED_COLOUR, zorder=2)
    axes.set(xlim=(-0.5, len(true) - 0.5), ylim=(0, 1.05 * max(true.max(), estimate.max())))
    axes.yaxis.set_major_locator(MaxNLocator(4, steps=[1, 2, 5, 10]))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{100 * value:.3g} %"))
    axes.tick_params(axis="y", labelsize=SMALL_TEXT_SIZE, labelcolor=INK)


def _draw_bar_caption(layout: FigureLayout, corner: _Corner, bars_height: float, caption: str) -> None:
    """Write the caption above the bars, followed by the legend."""
    x, y = corner[0], corner[1] + bars_height + GAP
    layout.text(x, y, caption, color=INK)
    x += layout.text_size([caption])[0] + 3 * GAP
    for name, colour in (("true", _TRUE_COLOUR), ("estimated", _ESTIMATED_COLOUR)):
        swatch = layout.add_axes(x, y, 0.09, 0.09)
        swatch.bar([0], [1], width=1, color=colour)
        swatch.set(xlim=(-0.5, 0.5), ylim=(0, 1))
        layout.text(x + 0.14, y, name, size=SMALL_TEXT_SIZE)
        x += 0.14 + layout.text_size([name], SMALL_TEXT_SIZE)[0] + 2 * GAP
