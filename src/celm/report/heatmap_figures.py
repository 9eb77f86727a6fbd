"""Heatmaps: evidence and shares by client and class, accuracy by the probe's steps and learning rate.

A heatmap has one hue whose opacity grows with the value, so it is readable on light and dark backgrounds.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.patches import Rectangle
from numpy.typing import NDArray

from celm.base.errors import CelmError
from celm.report.figure_layout import (
    EDGE,
    GAP,
    SMALL_TEXT_SIZE,
    TRUTH_COLOUR,
    FigureLayout,
    Matrix,
    cell_size,
    class_labels,
    client_class_matrix,
    fit_column_labels,
    format_title,
    label_columns,
    label_rows,
    outline_cells,
    truth_mask,
)
from celm.report.formatting import printable_line
from celm.report.style import INK, LINE, MUTED, figure_style

_HEAT_COLOUR = "#0B4F8A"
_MAX_CLASS_CELL, _MAX_SETTING_CELL, _MIN_CELL_WITH_NUMBER = 0.38, 0.55, 0.3
"""Inches: the largest cells, and the smallest in which a number is readable."""
_KEY_WIDTH, _KEY_HEIGHT, _KEY_STEPS = 1.0, 0.1, 5
_DARK_CELL = 0.55
"""Cells above this fraction of the largest value have white text."""


def evidence_figure(
    evidence: Mapping[str, Sequence[float]],
    class_names: Sequence[str] | None = None,
    counts: Mapping[str, Sequence[float]] | None = None,
    title: str | None = None,
) -> Axes:
    """Draw Q as a heatmap: client name to evidence by class. With `counts`, classes truly held are outlined."""
    table = client_class_matrix(evidence, "the evidence")
    return _draw_by_client_and_class(
        table, evidence, class_names, counts, title, "evidence", number_formatter(float(table.max()))
    )


def shares_figure(
    evidence: Mapping[str, Sequence[float]],
    class_names: Sequence[str] | None = None,
    counts: Mapping[str, Sequence[float]] | None = None,
    title: str | None = None,
) -> Axes:
    """Draw each client's share of a class's evidence in percent: the columns of Q divided by their sums."""
    table = _column_shares(client_class_matrix(evidence, "the shares"))
    return _draw_by_client_and_class(
        table, evidence, class_names, counts, title, "% of a class's evidence", lambda v: f"{100 * v:.0f}"
    )


def sensitivity_figure(accuracy: Mapping[tuple[int, float], float], title: str | None = None) -> Axes:
    """Draw accuracy over the probe's number of steps L and its step size (the paper's L x lr heatmap).

    `accuracy`: (steps, step size) to a fraction, shown in percent. The colours span its range.
    """
    if not accuracy:
        raise CelmError("cannot draw the grid: it is empty")
    steps, rates = sorted({key[0] for key in accuracy}), sorted({key[1] for key in accuracy})
    missing = [(s, r) for s in steps for r in rates if (s, r) not in accuracy]
    if missing:
        raise CelmError(f"cannot draw the grid: no value for L = {missing[0][0]}, lr = {missing[0][1]:g}")
    table = np.array([[accuracy[s, r] for r in rates] for s in steps], dtype=np.float64)
    if not np.isfinite(table).all():
        raise CelmError("cannot draw the grid: a number is not finite")
    with figure_style():
        return draw_heatmap(
            table,
            [str(s) for s in steps],
            [f"{r:g}" for r in rates],
            title=format_title(title),
            x_label="learning rate of the probe",
            y_label="steps L",
            key_label="accuracy, %",
            format_value=lambda value: f"{100 * value:.1f}",
            min_value=float(table.min()) - 1e-9,
            max_cell=_MAX_SETTING_CELL,
        )


def _column_shares(evidence: Matrix) -> Matrix:
    """Divide the columns by their sums; a class without evidence has shares of zero.

    >>> _column_shares(np.array([[1.0, 0.0], [3.0, 0.0]])).tolist()
    [[0.25, 0.0], [0.75, 0.0]]
    """
    total = evidence.sum(axis=0)
    shares: Matrix = np.divide(evidence, total, out=np.zeros_like(evidence), where=total > 0)
    return shares


def number_formatter(largest: float) -> Callable[[float], str]:
    """Return a formatter with as many decimals as fit into a cell.

    >>> number_formatter(3.0)(0.5), number_formatter(30.0)(0.5), number_formatter(3000.0)(0.5)
    ('0.50', '0.5', '0')
    """
    decimals = 2 if largest < 9.995 else 1 if largest < 99.95 else 0
    return lambda value: f"{value:.{decimals}f}"


def _draw_by_client_and_class(
    table: Matrix,
    clients: Mapping[str, Sequence[float]],
    class_names: Sequence[str] | None,
    counts: Mapping[str, Sequence[float]] | None,
    title: str | None,
    key_label: str,
    format_value: Callable[[float], str],
) -> Axes:
    subject = "the evidence"
    classes = class_labels(class_names, table.shape[1], subject)
    truth = truth_mask(counts, clients, table.shape[1], subject)
    with figure_style():
        return draw_heatmap(
            table,
            [printable_line(name) for name in clients],
            classes,
            title=format_title(title),
            x_label="class",
            key_label=key_label,
            format_value=format_value,
            truth=truth,
        )


def draw_heatmap(
    table: Matrix,
    rows: Sequence[str],
    columns: Sequence[str],
    *,
    title: str | None,
    x_label: str,
    key_label: str,
    format_value: Callable[[float], str],
    y_label: str | None = None,
    min_value: float = 0.0,
    truth: NDArray[np.bool_] | None = None,
    max_cell: float = _MAX_CLASS_CELL,
) -> Axes:
    """Draw cells from `min_value` (transparent) to the largest value. From 0 on, a cell at 0 has no number."""
    height, width = table.shape
    cell_width, cell_height = cell_size(width, 11.0, max_cell), cell_size(height, 6.0, max_cell)
    layout = FigureLayout()
    tick_labels = fit_column_labels(layout, columns, cell_width)
    y_label_width = 0.0 if y_label is None else layout.text_size([y_label])[1] + GAP
    left_margin = max(
        EDGE + y_label_width + layout.text_size(rows)[0] + GAP, EDGE + tick_labels.overhang - cell_width / 2
    )
    bottom_margin = EDGE + tick_labels.height + GAP + layout.text_size([x_label])[1]
    legend = f"{key_label}{'' if truth is None else '   '}"
    truth_label = "" if truth is None else "truly held"
    key_width = (
        _KEY_WIDTH
        + layout.text_size([legend], SMALL_TEXT_SIZE)[0]
        + layout.text_size([truth_label], SMALL_TEXT_SIZE)[0]
        + 0.6
        + 6 * GAP
    )
    key_height = GAP * 1.5 + _KEY_HEIGHT + GAP
    full_width = max(left_margin + width * cell_width, left_margin + key_width) + EDGE
    full_height = bottom_margin + height * cell_height + key_height + layout.title_height(title) + EDGE
    layout.resize(full_width, full_height, title)

    axes = layout.add_axes(left_margin, bottom_margin, width * cell_width, height * cell_height)
    max_value = float(table.max())
    strength = (
        (table - min_value) / (max_value - min_value) if max_value > min_value else np.zeros_like(table)
    )
    strength = np.clip(strength, 0, 1)
    for (y, x), value in np.ndenumerate(table):
        axes.add_patch(
            Rectangle(
                (x - 0.5, y - 0.5), 1, 1, facecolor=_HEAT_COLOUR, alpha=round(float(strength[y, x]), 3), lw=0
            )
        )
        if min(cell_width, cell_height) >= _MIN_CELL_WITH_NUMBER and (value > 0 or min_value != 0):
            is_dark = strength[y, x] > _DARK_CELL
            axes.text(
                x, y, format_value(value), size=SMALL_TEXT_SIZE, ha="center", va="center_baseline", zorder=4,
                color="white" if is_dark else INK, parse_math=False,
            )  # fmt: skip
    axes.hlines(np.arange(height + 1) - 0.5, -0.5, width - 0.5, colors=LINE, linewidths=0.8, zorder=1)
    axes.vlines(np.arange(width + 1) - 0.5, -0.5, height - 0.5, colors=LINE, linewidths=0.8, zorder=1)
    if truth is not None:
        outline_cells(axes, truth)
    axes.set(xlim=(-0.5, width - 0.5), ylim=(height - 0.5, -0.5))
    label_rows(axes, rows, cell_height)
    label_columns(axes, columns, cell_width, tick_labels)
    layout.text(left_margin + width * cell_width / 2, EDGE, x_label, ha="center")
    if y_label is not None:
        layout.text(
            EDGE, bottom_margin + height * cell_height / 2, y_label, rotation=90, va="center", ha="left"
        )
    _draw_key(
        layout,
        (left_margin, bottom_margin + height * cell_height + GAP * 1.5),
        legend,
        (format_value(min_value), format_value(max_value)),
        truth_label,
    )
    return axes


def _draw_key(
    layout: FigureLayout,
    corner: tuple[float, float],
    legend: str,
    extremes: tuple[str, str],
    truth_label: str,
) -> None:
    """Draw the colour scale over the grid, from the lowest to the highest value, and the meaning of a frame."""
    x, y = corner
    lowest, highest = extremes
    step = _KEY_WIDTH / _KEY_STEPS / 2
    layout.text(x, y, lowest, size=SMALL_TEXT_SIZE)
    x += layout.text_size([lowest], SMALL_TEXT_SIZE)[0] + GAP / 2
    bar = layout.add_axes(x, y, step * _KEY_STEPS, _KEY_HEIGHT)
    for number in range(_KEY_STEPS):
        alpha = number / (_KEY_STEPS - 1)
        bar.add_patch(Rectangle((number, 0), 1, 1, facecolor=_HEAT_COLOUR, alpha=alpha, lw=0))
    bar.add_patch(Rectangle((0, 0), _KEY_STEPS, 1, fill=False, edgecolor=LINE, lw=0.8, clip_on=False))
    bar.set(xlim=(0, _KEY_STEPS), ylim=(0, 1))
    x += step * _KEY_STEPS + GAP / 2
    layout.text(x, y, f"{highest}  {legend}", size=SMALL_TEXT_SIZE)
    if truth_label:
        x += layout.text_size([f"{highest}  {legend}"], SMALL_TEXT_SIZE)[0] + 2.5 * GAP
        frame = layout.add_axes(x, y, _KEY_HEIGHT, _KEY_HEIGHT)
        frame.add_patch(Rectangle((0, 0), 1, 1, fill=False, edgecolor=TRUTH_COLOUR, lw=1.4, clip_on=False))
        layout.text(x + _KEY_HEIGHT + GAP, y, truth_label, size=SMALL_TEXT_SIZE, color=MUTED)
