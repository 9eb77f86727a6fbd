"""Draw a line chart with names beside the lines instead of a legend. Names do not overlap."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import FuncFormatter, MaxNLocator
from numpy.typing import NDArray

from celm.report.figure_layout import EDGE, GAP, SMALL_TEXT_SIZE, TEXT_SIZE, FigureLayout
from celm.report.formatting import printable_line
from celm.report.style import INK, LINE, PALETTE

_CHART_WIDTH, _CHART_HEIGHT, _MIN_PLOT_WIDTH = 5.2, 2.9, 2.4
"""Inches: readable at full size on a page, and scaled on a phone."""
_LEADER_LENGTH = 0.28
"""Inches from the end of a line to its name."""
_NUM_COLOURS = 7
"""The palette without its pale yellow, which is too light for a line."""
_DASHES = ("-", (0, (4, 1.5)), (0, (1.2, 1.2)), (0, (6, 1.5, 1, 1.5)))
_MAX_NAMED_SERIES = 24
"""With more lines than this, only the highest and the lowest are coloured and named."""
_NUM_OUTER_NAMED = 6
_DEFAULT_Y_LIMITS = (0.0, 1.0)

_ChartValues = NDArray[np.float64]


@dataclass(frozen=True)
class Series:
    """A line of the chart."""

    x: _ChartValues
    y: _ChartValues
    """NaN leaves a gap."""
    band: tuple[_ChartValues, _ChartValues] | None = None
    """Lower and upper edge."""
    markers: bool = False
    """Whether the points are marked."""


@dataclass(frozen=True)
class AxisSpec:
    """Labels and limits of the axes."""

    x_label: str
    y_label: str
    integer_x: bool = True
    """Whether x ticks are integers."""
    y_limits: tuple[float, float] | None = None
    """By default the range of the lines; within 0 and 1 if it is in percent."""
    percent: bool = True
    """Whether the y axis shows fractions in percent."""
    near_zero_from_zero: bool = True
    """Whether the y axis begins at zero if zero is near. Without it, the range of the lines fills the chart."""


def line_chart(series: Mapping[str, Series], axis: AxisSpec, title: str | None) -> Axes:
    """Draw named lines. The figure grows with their number. The caller sets the figure style."""
    ends = {
        name: line.y[np.isfinite(line.y)][-1] for name, line in series.items() if np.isfinite(line.y).any()
    }
    named = _named_series(ends)
    layout = FigureLayout()
    label_width = layout.text_size([printable_line(name) for name in named], SMALL_TEXT_SIZE)[0]
    label_height = layout.text_size(["Ág"], SMALL_TEXT_SIZE)[1] * 1.12
    left_margin = EDGE + layout.text_size(["100 %" if axis.percent else "1.2e+05"])[0] + 2 * GAP
    right_margin = (_LEADER_LENGTH + label_width if named else 0.0) + EDGE
    bottom_margin = EDGE + 2 * layout.text_size(["0g"])[1] + 2.2 * GAP
    top_margin = layout.title_height(title) + EDGE + layout.text_size([axis.y_label])[1] + 1.5 * GAP
    layout.resize(
        max(_CHART_WIDTH, left_margin + _MIN_PLOT_WIDTH + right_margin),
        max(_CHART_HEIGHT, label_height * (len(named) + 1) + 0.8) + layout.title_height(title),
        title,
    )
    axes_width = layout.width - left_margin - right_margin
    axes_height = layout.height - bottom_margin - top_margin
    axes = layout.add_axes(left_margin, bottom_margin, axes_width, axes_height)
    axes.spines["bottom"].set_visible(True)
    low, high = axis.y_limits or _y_limits(list(series.values()), axis)
    all_x = np.concatenate([line.x for line in series.values()]) if series else np.zeros(0)
    axes.set(xlim=_x_limits(all_x), ylim=(low, high))
    for number, (name, line) in enumerate(series.items()):
        colour = _line_colour(number) if name in named or len(ends) <= _MAX_NAMED_SERIES else LINE
        if line.band is not None:
            axes.fill_between(line.x, *line.band, color=colour, alpha=0.15, linewidth=0)
        axes.plot(
            line.x,
            line.y,
            color=colour,
            linestyle=_DASHES[number // _NUM_COLOURS % len(_DASHES)],
            linewidth=1.5 if name in named else 0.8,
            marker="o" if line.markers else None,
            markersize=3,
            clip_on=False,
            zorder=3 if name in named else 2,
        )
    _label_series(axes, series, ends, named, (axes_width, axes_height), label_height)
    axes.grid(axis="y")
    axes.xaxis.set_major_locator(MaxNLocator(6, integer=axis.integer_x, steps=[1, 2, 5, 10]))
    ticks = MaxNLocator(5, steps=[1, 2, 5, 10]).tick_values(low, high)
    axes.set_yticks([tick for tick in ticks if low <= tick <= high])
    if len(set(all_x.tolist())) == 1:
        axes.set_xticks(all_x[:1], [f"{all_x[0]:g}"])
    axes.tick_params(labelsize=TEXT_SIZE, labelcolor=INK, pad=0.6 * GAP * 72)
    factor, unit = (100, " %") if axis.percent else (1, "")
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{factor * value:.4g}{unit}"))
    layout.text(left_margin + axes_width / 2, EDGE, axis.x_label, ha="center")
    layout.text(left_margin, bottom_margin + axes_height + 1.5 * GAP, axis.y_label, ha="left")
    return axes


def needs_markers(values: _ChartValues) -> bool:
    """Return whether points must be marked: there are few, or a gap could isolate one."""
    return bool(len(values) <= 12 or not np.isfinite(values).all())


def spread_labels(targets: Sequence[float], gap: float, low: float, high: float) -> list[float]:
    """Return positions near the targets, in the same order, at least `gap` apart.

    >>> [round(y, 2) for y in spread_labels([0.5, 0.5, 0.9], 0.1, 0.0, 1.0)]
    [0.45, 0.55, 0.9]
    """
    order = sorted(range(len(targets)), key=lambda i: (targets[i], i))
    # A block is a run of touching labels, centred on the mean of its targets.
    blocks: list[list[int]] = []

    def middle(block: list[int]) -> float:
        centre = sum(targets[i] for i in block) / len(block)
        half = gap * (len(block) - 1) / 2
        return max(low + half, min(high - half, centre))

    for i in order:
        blocks.append([i])
        while len(blocks) > 1:
            before, last = blocks[-2], blocks[-1]
            distance = middle(last) - middle(before)
            if distance >= gap * (len(before) + len(last)) / 2 - 1e-12:
                break
            blocks[-2:] = [before + last]
    positions = [0.0] * len(targets)
    for block in blocks:
        base = middle(block) - gap * (len(block) - 1) / 2
        for step, i in enumerate(block):
            positions[i] = base + gap * step
    return positions


def _named_series(ends: Mapping[str, float]) -> set[str]:
    """Return the lines that get a name: all, or the outer ones if there are too many."""
    if len(ends) <= _MAX_NAMED_SERIES:
        return set(ends)
    ranked = sorted(ends, key=lambda name: -ends[name])
    return {*ranked[:_NUM_OUTER_NAMED], *ranked[-_NUM_OUTER_NAMED:]}


def _line_colour(number: int) -> str:
    return PALETTE[number % _NUM_COLOURS]


def _x_limits(x: _ChartValues) -> tuple[float, float]:
    low, high = (float(x.min()), float(x.max())) if len(x) else (0.0, 1.0)
    return (low - 0.5, high + 0.5) if low == high else (low, high)


def _y_limits(series: Sequence[Series], axis: AxisSpec) -> tuple[float, float]:
    """Return the range of lines and bands with some padding."""
    percent = axis.percent
    parts = [line.y for line in series] + [edge for line in series if line.band for edge in line.band]
    values = np.concatenate(parts) if parts else np.zeros(0)
    values = values[np.isfinite(values)]
    bottom, top = _DEFAULT_Y_LIMITS
    if not len(values):
        return bottom, top
    low, high = float(values.min()), float(values.max())
    padding = 0.06 * (high - low) or 0.05 * abs(high) or 0.05
    low, high = (low - padding if percent or low < 0 else max(0.0, low - padding)), high + padding
    if axis.near_zero_from_zero and low < 0.4 * high:
        low = min(low, bottom)
    return (max(low, bottom), min(high, top)) if percent else (low, high)


def _label_series(
    axes: Axes,
    series: Mapping[str, Series],
    ends: Mapping[str, float],
    named: set[str],
    axes_size: tuple[float, float],
    label_height: float,
) -> None:
    """Write the names to the right, in the order of the lines' ends, and join them by thin leaders."""
    low, high = axes.get_ylim()
    left, right = axes.get_xlim()
    x_per_inch, y_per_inch = (right - left) / axes_size[0], (high - low) / axes_size[1]
    numbered = [(number, name) for number, name in enumerate(series) if name in named]
    label_positions = spread_labels(
        [ends[name] for _, name in numbered], label_height * y_per_inch, low, high
    )
    for (number, name), y in zip(numbered, label_positions, strict=True):
        line = series[name]
        last_x = line.x[np.isfinite(line.y)][-1]
        axes.plot(
            [last_x, right + 0.4 * _LEADER_LENGTH * x_per_inch, right + 0.8 * _LEADER_LENGTH * x_per_inch],
            [ends[name], y, y],
            color=_line_colour(number),
            linewidth=0.6,
            alpha=0.6,
            clip_on=False,
            zorder=1,
        )
        axes.text(
            right + _LEADER_LENGTH * x_per_inch,
            y,
            printable_line(name),
            size=SMALL_TEXT_SIZE,
            color=INK,
            va="center_baseline",
            parse_math=False,
        )
