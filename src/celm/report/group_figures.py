"""Figures of many clients: the distribution of weights, heatmaps of groups, and the spread over the rounds.

Their size does not grow with the number of clients.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import FuncFormatter, MaxNLocator

from celm.base.errors import CelmError
from celm.report.figure_layout import (
    EDGE,
    GAP,
    SMALL_TEXT_SIZE,
    TRUTH_COLOUR,
    FigureLayout,
    class_labels,
    client_class_matrix,
)
from celm.report.heatmap_figures import draw_heatmap, number_formatter
from celm.report.line_chart import AxisSpec, Series, line_chart
from celm.report.style import INK, LINE, MUTED, PALETTE, figure_style

_MAX_GROUPS = 25
_PLOT_WIDTH, _PLOT_HEIGHT = 4.6, 1.9
"""Inches, for the distribution."""
_NUM_BINS = 30
_NUM_NAMED = 3
"""Heaviest clients that have a line of their own over the rounds."""


def distribution_figure(
    values: Mapping[str, float], flagged: Collection[str] = (), quantity: str = "weight"
) -> Axes:
    """Draw how many clients have which weight. Flagged clients are red; the dashed line is 1 / N."""
    if not values:
        raise CelmError(f"cannot draw the {quantity}s: there are no clients")
    table = np.array(list(values.values()), dtype=np.float64)
    if not np.isfinite(table).all():
        raise CelmError(f"cannot draw the {quantity}s: a number is not finite")
    is_flagged = np.array([client in flagged for client in values])
    equal_share = 1 / len(table)
    high = max(float(table.max()), equal_share)
    edges = np.linspace(min(0.0, float(table.min())), high * 1.0001, _NUM_BINS + 1)
    centres = (edges[:-1] + edges[1:]) / 2
    with figure_style():
        layout = FigureLayout()
        bottom_margin = EDGE + 2 * layout.text_size(["100 %"], SMALL_TEXT_SIZE)[1] + 3 * GAP
        left_margin = EDGE + layout.text_size([str(len(table))], SMALL_TEXT_SIZE)[0] + 2 * GAP
        top_margin = EDGE + 2 * GAP
        layout.resize(left_margin + _PLOT_WIDTH + 2 * EDGE, bottom_margin + _PLOT_HEIGHT + top_margin)
        axes = layout.add_axes(left_margin, bottom_margin, _PLOT_WIDTH, _PLOT_HEIGHT)
        base = np.zeros(_NUM_BINS)
        for mask, colour in ((is_flagged, TRUTH_COLOUR), (~is_flagged, PALETTE[0])):
            counts = np.histogram(table[mask], edges)[0]
            axes.bar(centres, counts, width=0.9 * np.diff(edges), bottom=base, color=colour, zorder=2)
            base = base + counts
        axes.axvline(equal_share, color=MUTED, linewidth=0.9, linestyle=(0, (4, 2)), zorder=4)
        axes.set(xlim=(edges[0], edges[-1]), ylim=(0, 1.08 * max(1.0, float(base.max()))))
        axes.spines["bottom"].set_visible(True)
        axes.grid(axis="y", color=LINE)
        axes.xaxis.set_major_locator(MaxNLocator(6, steps=[1, 2, 5, 10]))
        axes.yaxis.set_major_locator(MaxNLocator(4, integer=True))
        axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{100 * value:.3g} %"))
        axes.tick_params(labelsize=SMALL_TEXT_SIZE, labelcolor=INK)
        caption = f"{quantity}; dashed: equal share" + ("; red: flagged" if is_flagged.any() else "")
        layout.text(left_margin, EDGE, caption, size=SMALL_TEXT_SIZE)
        layout.text(EDGE, bottom_margin + _PLOT_HEIGHT + GAP, "clients", size=SMALL_TEXT_SIZE)
    return axes


def group_figure(
    rows: Mapping[str, Sequence[float]], class_names: Sequence[str], key_label: str, shares: bool = False
) -> Axes:
    """Draw a client x class table as means over groups of clients, in the order of `rows`.

    With `shares`, each column is divided by its sum first, and a cell is the sum of the shares of its group.
    """
    table = client_class_matrix(rows, key_label)
    if shares:
        total = table.sum(axis=0)
        table = np.divide(table, total, out=np.zeros_like(table), where=total > 0)
    size = math.ceil(len(table) / _MAX_GROUPS)
    starts = range(0, len(table), size)
    groups = [table[start : start + size] for start in starts]
    cells = np.array([group.sum(axis=0) if shares else group.mean(axis=0) for group in groups])
    labels = [
        f"{start + 1}–{start + len(group)}" if len(group) > 1 else f"{start + 1}"
        for start, group in zip(starts, groups, strict=True)
    ]
    format_value = (lambda v: f"{100 * v:.0f}") if shares else number_formatter(float(cells.max()))
    with figure_style():
        return draw_heatmap(
            cells,
            labels,
            class_labels(class_names, table.shape[1], key_label),
            title=None,
            x_label="class",
            y_label="clients, heaviest first",
            key_label=key_label,
            format_value=format_value,
        )


def spread_figure(records: Sequence[Mapping[str, Any]], quantity: str, y_label: str) -> Axes:
    """Draw median, middle half and outer twentieths of all clients over the rounds, and the heaviest clients."""
    shown = [record for record in records if record[quantity]]
    if not shown:
        raise CelmError(f"cannot draw the {quantity}: no round has a value")
    x = np.array([record["round"] for record in shown], dtype=np.float64)
    levels = np.array(
        [np.quantile(list(record[quantity].values()), [0.05, 0.25, 0.5, 0.75, 0.95]) for record in shown]
    )
    last = shown[-1][quantity]
    series = {
        client: Series(
            x, np.array([record[quantity].get(client, math.nan) for record in shown], dtype=np.float64)
        )
        for client in sorted(last, key=lambda name: -last[name])[:_NUM_NAMED]
    }
    series["95 % have less"] = Series(x, levels[:, 4])
    series["median"] = Series(x, levels[:, 2], (levels[:, 1], levels[:, 3]))
    series["5 % have less"] = Series(x, levels[:, 0])
    largest = max(float(np.nanmax(line.y)) for line in series.values())
    axis = AxisSpec("round", y_label, y_limits=(0.0, 1.06 * largest if largest > 0 else 1.0))
    with figure_style():
        return line_chart(series, axis, None)
