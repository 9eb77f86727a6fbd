"""Scores by client as bars; accuracy by class, accuracy by method and weights by client as dots."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import FuncFormatter, MaxNLocator

from celm.base.errors import CelmError
from celm.report.figure_layout import (
    EDGE,
    GAP,
    SMALL_TEXT_SIZE,
    TEXT_SIZE,
    TRUTH_COLOUR,
    FigureLayout,
    cell_size,
    class_labels,
    fit_column_labels,
    format_title,
    label_columns,
    label_rows,
)
from celm.report.formatting import printable_line
from celm.report.style import INK, LINE, MUTED, PALETTE, figure_style

_BARS_WIDTH, _MAX_ROW_HEIGHT = 3.6, 0.3
"""Inches, for bars of scores."""
_PLOT_HEIGHT, _MAX_CLASS_WIDTH, _MIN_LEGEND_WIDTH, _LEGEND_ROW_HEIGHT = 2.1, 0.42, 3.0, 0.17
"""Inches, for dots by class."""
_DOT_SIZE = 5.0
_MIN_RANGE = 0.02
"""The smallest range of an axis that spans its values."""
_MARKERS = ("o", "D", "s", "^", "v", "P", "X", "<")
"""Methods differ in shape as well as in colour."""
_RARE_COLOUR = PALETTE[1]


def scores_figure(
    scores: Mapping[str, float],
    errors: Mapping[str, float | None] | None = None,
    flagged: Collection[str] = (),
    title: str | None = None,
) -> Axes:
    """Draw one bar per client, red if flagged. Whiskers are the probe's standard errors; the dashed line is 1 / N."""
    if not scores:
        raise CelmError("cannot draw the scores: there are no clients")
    values = np.array(list(scores.values()), dtype=np.float64)
    error_widths = np.array([(errors or {}).get(name) or 0.0 for name in scores], dtype=np.float64)
    if not (np.isfinite(values).all() and np.isfinite(error_widths).all()):
        raise CelmError("cannot draw the scores: a number is not finite")
    names = [printable_line(name) for name in scores]
    title_text = format_title(title)
    equal_share = 1 / len(values)
    with figure_style():
        layout = FigureLayout()
        row_height = cell_size(len(values), 8.0, _MAX_ROW_HEIGHT)
        left_margin = EDGE + layout.text_size(names)[0] + 2 * GAP
        bottom_margin = EDGE + 2 * layout.text_size(["100 %"], SMALL_TEXT_SIZE)[1] + 3 * GAP
        height = row_height * len(values)
        layout.resize(
            left_margin + _BARS_WIDTH + 2 * EDGE,
            bottom_margin + height + layout.title_height(title_text) + EDGE + GAP,
            title_text,
        )
        axes = layout.add_axes(left_margin, bottom_margin, _BARS_WIDTH, height)
        colours = [TRUTH_COLOUR if name in flagged else PALETTE[0] for name in scores]
        axes.barh(range(len(values)), values, height=0.62, color=colours, zorder=2)
        if error_widths.any():
            axes.errorbar(
                values,
                range(len(values)),
                xerr=error_widths,
                fmt="none",
                ecolor=INK,
                elinewidth=0.9,
                capsize=2,
                zorder=3,
            )
        axes.axvline(equal_share, color=MUTED, linewidth=0.9, linestyle=(0, (4, 2)), zorder=4)
        axes.grid(axis="x", color=LINE)
        x_max = 1.08 * max(float((values + error_widths).max()), equal_share)
        ticks = MaxNLocator(5, steps=[1, 2, 5, 10]).tick_values(0, x_max)
        axes.set(xlim=(0, x_max), ylim=(len(values) - 0.5, -0.5))
        axes.set_xticks([tick for tick in ticks if tick <= x_max])
        axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{100 * value:.3g} %"))
        axes.tick_params(axis="x", labelsize=SMALL_TEXT_SIZE, labelcolor=INK)
        label_rows(axes, names, row_height)
        caption = "score; whiskers: standard error of the probe; dashed: equal share"
        layout.text(left_margin, EDGE, caption, size=SMALL_TEXT_SIZE)
    return axes


def per_class_figure(
    per_class: Mapping[str, Sequence[float | None]],
    class_names: Sequence[str] | None = None,
    rare: Sequence[int] = (),
    title: str | None = None,
) -> Axes:
    """Draw one dot per method and class. `rare` classes have a tinted background.

    `per_class`: method to accuracy by class; None or NaN if the class was not tested. The axis of one method goes from
    0 to 100 %; that of several methods spans their values, to show how they differ.
    """
    columns = _row_length(per_class, "accuracy by class", "class")
    classes = class_labels(class_names, columns, "accuracy by class")
    y_limits = (-0.04, 1.04) if len(per_class) == 1 else _padded_range(per_class.values())
    with figure_style():
        return _dots_figure(per_class, classes, rare, y_limits, "class", format_title(title))


def method_weights_figure(weights: Mapping[str, Sequence[float | None]], clients: Sequence[str]) -> Axes:
    """Draw one dot per method and client. `weights`: method to the weight of each client."""
    _row_length(weights, "weights by client", "client")
    names = [printable_line(name) for name in clients]
    with figure_style():
        return _dots_figure(weights, names, (), _padded_range(weights.values()), "client", None)


def method_accuracy_figure(values: Mapping[str, Sequence[float]]) -> Axes:
    """Draw one row per method: a small dot per run, a large one for their mean. The axis spans the values."""
    if not values or not all(values.values()):
        raise CelmError("cannot draw the accuracies: every method needs a value")
    names = [printable_line(name) for name in values]
    low, high = _padded_range(values.values())
    with figure_style():
        layout = FigureLayout()
        left_margin = EDGE + layout.text_size(names)[0] + 2 * GAP
        bottom_margin = EDGE + 2 * layout.text_size(["100 %"], SMALL_TEXT_SIZE)[1] + 3 * GAP
        row_height = cell_size(len(names), 8.0, _MAX_ROW_HEIGHT)
        height = row_height * len(names)
        layout.resize(left_margin + _BARS_WIDTH + 2 * EDGE, bottom_margin + height + EDGE + GAP)
        axes = layout.add_axes(left_margin, bottom_margin, _BARS_WIDTH, height)
        for row, runs in enumerate(values.values()):
            colour = PALETTE[row % 7]
            axes.plot([min(runs), max(runs)], [row, row], color=colour, linewidth=1, alpha=0.5, zorder=2)
            axes.plot(runs, [row] * len(runs), "o", color=colour, markersize=3, alpha=0.6, zorder=3)
            axes.plot([float(np.mean(runs))], [row], "o", color=colour, markersize=6.5, zorder=4)
        axes.grid(axis="x", color=LINE)
        axes.set(xlim=(low, high), ylim=(len(names) - 0.5, -0.5))
        axes.xaxis.set_major_locator(MaxNLocator(5, steps=[1, 2, 5, 10]))
        axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{100 * value:.4g} %"))
        axes.tick_params(axis="x", labelsize=SMALL_TEXT_SIZE, labelcolor=INK)
        label_rows(axes, names, row_height)
        caption = "accuracy; large: mean, small: each run"
        layout.text(left_margin, EDGE, caption, size=SMALL_TEXT_SIZE)
    return axes


def _row_length(rows: Mapping[str, Sequence[float | None]], subject: str, column: str) -> int:
    lengths = {len(row) for row in rows.values()}
    if len(lengths) != 1 or lengths == {0}:
        raise CelmError(f"cannot draw {subject}: every method needs a number for every {column}")
    return lengths.pop()


def _padded_range(rows: Iterable[Sequence[float | None]]) -> tuple[float, float]:
    """Return limits around fractions: at least 2 percentage points, and at most a little beyond 0 to 1.

    >>> [round(limit, 3) for limit in _padded_range([[0.7, 0.8], [None, 0.9]])]
    [0.684, 0.916]
    """
    values = [value for row in rows for value in row if value is not None and math.isfinite(value)] or [
        0.0,
        1.0,
    ]
    low, high = min(values), max(values)
    padding = max(0.08 * (high - low), (_MIN_RANGE - (high - low)) / 2)
    return max(-0.04, low - padding), min(1.04, high + padding)


def _dots_figure(
    rows: Mapping[str, Sequence[float | None]],
    names: Sequence[str],
    rare: Sequence[int],
    y_limits: tuple[float, float],
    x_label: str,
    title: str | None,
) -> Axes:
    columns = len(names)
    layout = FigureLayout()
    cell_width = cell_size(columns, 11.0, _MAX_CLASS_WIDTH)
    plot_width = columns * cell_width
    tick_labels = fit_column_labels(layout, names, cell_width)
    left_margin = max(
        EDGE + layout.text_size(["100 %"])[0] + 2 * GAP, EDGE + tick_labels.overhang - cell_width / 2
    )
    bottom_margin = EDGE + tick_labels.height + GAP + layout.text_size([x_label])[1]
    entries = [printable_line(name) for name in rows] if len(rows) > 1 else []
    entries += ["rare class"] if rare else []
    entry_widths = [layout.text_size([entry], SMALL_TEXT_SIZE)[0] + 0.2 + 2 * GAP for entry in entries]
    legend_rows = _wrap_legend(entry_widths, max(plot_width, _MIN_LEGEND_WIDTH))
    legend_width = max((sum(entry_widths[i] for i in row) for row in legend_rows), default=0)
    legend_height = len(legend_rows) * _LEGEND_ROW_HEIGHT + GAP if legend_rows else 0.0
    legend_top = bottom_margin + _PLOT_HEIGHT + GAP + legend_height
    layout.resize(
        left_margin + max(plot_width, legend_width) + EDGE,
        legend_top + layout.title_height(title) + EDGE,
        title,
    )
    axes = layout.add_axes(left_margin, bottom_margin, plot_width, _PLOT_HEIGHT)
    axes.set(xlim=(-0.5, columns - 0.5), ylim=y_limits)
    for k in rare:
        axes.axvspan(k - 0.5, k + 0.5, color=_RARE_COLOUR, alpha=0.18, linewidth=0, zorder=0)
    axes.grid(axis="y")
    _draw_dots(axes, list(rows.values()))
    ticks = MaxNLocator(5, steps=[1, 2, 2.5, 5, 10]).tick_values(*y_limits)
    axes.set_yticks([tick for tick in ticks if max(0.0, y_limits[0]) <= tick <= min(1.0, y_limits[1])])
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{100 * value:.3g} %"))
    axes.tick_params(axis="y", labelsize=TEXT_SIZE, labelcolor=INK)
    label_columns(axes, names, cell_width, tick_labels)
    layout.text(left_margin + plot_width / 2, EDGE, x_label, ha="center")
    for line, entry_numbers in enumerate(legend_rows):
        x, y = left_margin, legend_top - (line + 1) * _LEGEND_ROW_HEIGHT
        for number in entry_numbers:
            is_rare_entry = bool(rare) and number == len(entries) - 1
            _draw_legend_entry(layout, x, y, entries[number], None if is_rare_entry else number)
            x += entry_widths[number]
    return axes


def _draw_dots(axes: Axes, rows: Sequence[Sequence[float | None]]) -> None:
    """Draw the dots of all methods side by side; a single method also gets stems."""
    for number, row in enumerate(rows):
        shift = (number - (len(rows) - 1) / 2) * min(0.12, 0.7 / len(rows))
        y = np.array([math.nan if value is None else value for value in row], dtype=np.float64)
        x = np.arange(len(row)) + shift
        if len(rows) == 1:
            axes.vlines(x, 0, np.nan_to_num(y), colors=LINE, linewidths=2, zorder=1)
        axes.plot(
            x,
            y,
            linestyle="none",
            marker=_MARKERS[number % len(_MARKERS)],
            markersize=_DOT_SIZE,
            markeredgewidth=0,
            color=PALETTE[number % 7],
            clip_on=False,
            zorder=3,
        )


def _wrap_legend(entry_widths: Sequence[float], width: float) -> list[list[int]]:
    """Break the entries of a legend into rows of at most `width`; return their numbers.

    >>> _wrap_legend([1.0, 1.0, 1.0], 2.5)
    [[0, 1], [2]]
    """
    rows: list[list[int]] = []
    used = 0.0
    for number, entry_width in enumerate(entry_widths):
        if not rows or used + entry_width > width:
            rows.append([])
            used = 0.0
        rows[-1].append(number)
        used += entry_width
    return rows


def _draw_legend_entry(layout: FigureLayout, x: float, y: float, text: str, method: int | None) -> None:
    """Draw the marker of a method, or the tint of rare classes if `method` is None, and its text."""
    swatch = layout.add_axes(x, y, 0.14, _LEGEND_ROW_HEIGHT * 0.75)
    swatch.set(xlim=(0, 1), ylim=(0, 1))
    if method is None:
        swatch.axvspan(0, 1, color=_RARE_COLOUR, alpha=0.35, linewidth=0)
    else:
        swatch.plot(
            [0.5],
            [0.5],
            _MARKERS[method % len(_MARKERS)],
            color=PALETTE[method % 7],
            markersize=_DOT_SIZE,
            markeredgewidth=0,
            clip_on=False,
        )
    layout.text(x + 0.2, y + _LEGEND_ROW_HEIGHT * 0.375, text, size=SMALL_TEXT_SIZE, va="center_baseline")
