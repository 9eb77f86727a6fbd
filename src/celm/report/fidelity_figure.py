"""True against estimated distribution over clients and classes, with both marginals (the paper's fidelity panels)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import FuncFormatter, MaxNLocator

from celm.base.errors import CelmError
from celm.report.sheet import (
    EDGE,
    GAP,
    SMALL,
    TEXT,
    Matrix,
    Names,
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
from celm.report.style import INK, PALETTE, look, plain, save_figure

__all__ = ["fidelity_figure", "save_figure"]

TRUE, ESTIMATED = "#8A94A0", PALETTE[0]
CELL, BARS, HIGHEST, BESIDE, PAIR = 0.32, 1.15, 2.0, 4.6, 0.8
"""Inches: the largest cell, the lowest and highest bars, the widest grid with bars beside it, a pair of bars."""
FILL = 0.94


def fidelity_figure(
    counts: Mapping[str, Sequence[float]],
    estimated: Mapping[str, Sequence[float]],
    class_names: Sequence[str] | None = None,
    title: str | None = None,
) -> Axes:
    """`counts`: client to samples by class; `estimated`: client to its estimate by class (such as the evidence).

    A client that one of them does not name has nothing there. Each is divided by its total. Bubbles, by area and
    on one scale: (a) the true, (b) the estimated distribution; bars, true beside estimated: (c) its sums over
    classes, (d) over clients. Returns the axes of (a).
    """
    what = "the distributions"
    clients = list(dict.fromkeys([*counts, *estimated]))
    lengths = {len(row) for table in (counts, estimated) for row in table.values()}
    if len(lengths) > 1:
        raise CelmError(f"cannot draw {what}: true and estimated are of different classes")
    nothing = [0.0] * max(lengths, default=0)
    true, guess = (
        joint(matrix({name: table.get(name, nothing) for name in clients}, what), what)
        for table in (counts, estimated)
    )
    classes = class_labels(class_names, true.shape[1], what)
    with look():
        return draw(true, guess, [plain(name) for name in clients], classes, heading_text(title))


def joint(table: Matrix, what: str) -> Matrix:
    total = float(table.sum())
    if total <= 0:
        raise CelmError(f"cannot draw {what}: one of them is zero everywhere")
    return table / total


def draw(true: Matrix, guess: Matrix, clients: list[str], classes: list[str], title: str | None) -> Axes:
    rows, columns = true.shape
    sheet = Sheet()
    wide, high = cell(columns, 11.0, CELL), cell(rows, 8.0, CELL)
    width, height = columns * wide, rows * high
    beside = width <= BESIDE
    bars_width = max(width, 3.0)
    by_client, by_class = min(PAIR, bars_width / rows), min(PAIR, bars_width / columns)
    class_names, client_names = names_below(sheet, classes, wide), names_below(sheet, clients, by_client)
    class_bars = names_below(sheet, classes, by_class)
    caption = sheet.extent(["(a)"])[1] + 2 * GAP
    axis = sheet.extent(["100 %"], SMALL)[0] + 2 * GAP
    row_names = sheet.extent(clients)[0] + GAP
    left = EDGE + max(row_names, axis if not beside else 0, class_names.beyond - wide / 2)
    if not beside:
        left = max(left, EDGE + max(client_names.beyond - by_client / 2, class_bars.beyond - by_class / 2))
    below = class_names.below + GAP
    below_bars = max(client_names.below, class_bars.below) + GAP
    panel = min(max(height, BARS), HIGHEST)
    heading = sheet.heading(title)
    if beside:
        second = left + max(width, 1.6) + 2.5 * GAP
        second += max(axis, client_names.beyond - by_client / 2, class_bars.beyond - by_class / 2)
        step = max(height + below, panel + below_bars) + caption
        full = (second + bars_width + EDGE, 1.5 * EDGE + 2 * step + heading)
        sheet.resize(*full, title)
        top = full[1] - heading - EDGE / 2
        places = [(left, top - step * (i + 1) + step - caption - height) for i in range(2)]
        bars = [(second, top - step * (i + 1) + step - caption - panel) for i in range(2)]
    else:
        grid_step, bars_step = height + below + caption, BARS + below_bars + caption
        sheet.resize(left + bars_width + EDGE, 1.5 * EDGE + 2 * grid_step + 2 * bars_step + heading, title)
        top = sheet.height - heading - EDGE / 2
        places = [(left, top - grid_step * i - caption - height) for i in range(2)]
        bars = [(left, top - 2 * grid_step - bars_step * i - caption - BARS) for i in range(2)]
        panel = BARS

    most = max(float(true.max()), float(guess.max()))
    area = (FILL * min(wide, high) * 72) ** 2
    drawn = []
    for letter, name, table, colour, (x, y) in zip(
        "ab", ("true distribution", "estimated distribution"), (true, guess), (TRUE, ESTIMATED), places,
        strict=True,
    ):  # fmt: skip
        axes = sheet.place(x, y, width, height)
        bubbles(axes, table / most * area, colour)
        label_rows(axes, clients, high)
        label_columns(axes, classes, wide, class_names)
        sheet.text(x, y + height + GAP, f"({letter}) {name}", color=INK)
        drawn.append(axes)
    pairs(
        sheet, bars[0], (bars_width, panel), true.sum(1), guess.sum(1), clients, client_names, "(c) by client"
    )
    pairs(
        sheet,
        bars[1],
        (by_class * columns, panel),
        true.sum(0),
        guess.sum(0),
        classes,
        class_bars,
        "(d) by class",
    )
    return drawn[0]


def pairs(
    sheet: Sheet,
    place: tuple[float, float],
    size: tuple[float, float],
    true: Matrix,
    guess: Matrix,
    names: Sequence[str],
    turned: Names,
    caption: str,
) -> None:
    """Bars of the true beside the estimated marginal, with a legend in the caption's line."""
    axes = sheet.place(*place, *size)
    axes.grid(axis="y")
    at = np.arange(len(names))
    axes.bar(at - 0.19, true, width=0.36, color=TRUE, zorder=2)
    axes.bar(at + 0.19, guess, width=0.36, color=ESTIMATED, zorder=2)
    axes.set(xlim=(-0.5, len(names) - 0.5), ylim=(0, 1.05 * max(true.max(), guess.max())))
    axes.yaxis.set_major_locator(MaxNLocator(4, steps=[1, 2, 5, 10]))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{100 * value:.3g} %"))
    axes.tick_params(axis="y", labelsize=SMALL, labelcolor=INK)
    label_columns(axes, names, size[0] / len(names), turned)
    x, y = place[0], place[1] + size[1] + GAP
    sheet.text(x, y, caption, color=INK)
    x += sheet.extent([caption], TEXT)[0] + 3 * GAP
    for name, colour in (("true", TRUE), ("estimated", ESTIMATED)):
        swatch = sheet.place(x, y, 0.09, 0.09)
        swatch.bar([0], [1], width=1, color=colour)
        swatch.set(xlim=(-0.5, 0.5), ylim=(0, 1))
        sheet.text(x + 0.14, y, name, size=SMALL)
        x += 0.14 + sheet.extent([name], SMALL)[0] + 2 * GAP
