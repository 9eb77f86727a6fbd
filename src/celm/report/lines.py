"""Lines with their names written beside them: no legend to look up, none on top of another."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import FuncFormatter, MaxNLocator
from numpy.typing import NDArray

from celm.report.sheet import EDGE, GAP, SMALL, TEXT, Sheet
from celm.report.style import INK, LINE, PALETTE, plain

WIDTH, HEIGHT = 5.2, 2.9
"""Inches: readable at its own size on a page, and scaled to a phone."""
LEADER = 0.28
"""Inches from the end of a line to its name."""
DASHES = ("-", (0, (4, 1.5)), (0, (1.2, 1.2)), (0, (6, 1.5, 1, 1.5)))
NAMED = 24
"""With more lines than this only the outer ones are coloured and named."""
OUTER = 6

Values = NDArray[np.float64]


@dataclass(frozen=True)
class Line:
    x: Values
    y: Values
    """NaN where there is none."""
    band: tuple[Values, Values] | None = None
    mark: bool = False
    """Dots on the line, for the few points or those with gaps."""


@dataclass(frozen=True)
class Scale:
    across: str
    up: str
    percent: bool = True
    whole: bool = True
    """Whether the numbers across are whole ones."""
    limits: tuple[float, float] | None = None
    within: tuple[float, float] = field(default=(0.0, 1.0))


def lines_figure(lines: Mapping[str, Line], scale: Scale, title: str | None) -> Axes:
    """Draw named lines; the figure grows with their number. The caller has set the look."""
    ends = {
        name: line.y[np.isfinite(line.y)][-1] for name, line in lines.items() if np.isfinite(line.y).any()
    }
    named = set(ends)
    if len(ends) > NAMED:
        ranked = sorted(ends, key=lambda name: -ends[name])
        named = {*ranked[:OUTER], *ranked[-OUTER:]}
    sheet = Sheet()
    right = LEADER + sheet.extent([plain(name) for name in named], SMALL)[0] + EDGE if named else EDGE
    slot = sheet.extent(["Ág"], SMALL)[1] * 1.12
    height = max(HEIGHT, slot * (len(named) + 1) + 0.8)
    low, high = scale.limits or limits(list(lines.values()), scale.within)
    left = EDGE + sheet.extent(["100 %"])[0] + 2 * GAP
    below = EDGE + 2 * sheet.extent(["0g"])[1] + 2.2 * GAP
    above = sheet.heading(title) + EDGE + sheet.extent([scale.up])[1] + 1.5 * GAP
    sheet.resize(max(WIDTH, left + 2.4 + right), height + sheet.heading(title), title)
    wide, high_inches = sheet.width - left - right, sheet.height - below - above
    axes = sheet.place(left, below, wide, high_inches)
    axes.spines["bottom"].set_visible(True)
    every = np.concatenate([line.x for line in lines.values()]) if lines else np.zeros(0)
    span = (float(every.min()), float(every.max())) if len(every) else (0.0, 1.0)
    if span[0] == span[1]:
        span = (span[0] - 0.5, span[1] + 0.5)
    axes.set(xlim=span, ylim=(low, high))
    for number, (name, line) in enumerate(lines.items()):
        colour = PALETTE[number % 7] if name in named or len(ends) <= NAMED else LINE
        style = DASHES[number // 7 % len(DASHES)]
        if line.band is not None:
            axes.fill_between(line.x, *line.band, color=colour, alpha=0.15, linewidth=0)
        axes.plot(
            line.x,
            line.y,
            color=colour,
            linestyle=style,
            linewidth=1.5 if name in named else 0.8,
            marker="o" if line.mark else None,
            markersize=3,
            clip_on=False,
            zorder=3 if name in named else 2,
        )
    write_names(axes, lines, ends, named, sheet, (wide, high_inches), slot)
    axes.grid(axis="y")
    axes.xaxis.set_major_locator(MaxNLocator(6, integer=scale.whole, steps=[1, 2, 5, 10]))
    ticks = MaxNLocator(5, steps=[1, 2, 5, 10]).tick_values(low, high)
    axes.set_yticks([tick for tick in ticks if low <= tick <= high])
    if len(set(every.tolist())) == 1:
        axes.set_xticks(every[:1], [f"{every[0]:g}"])
    axes.tick_params(labelsize=TEXT, labelcolor=INK, pad=0.6 * GAP * 72)
    if scale.percent:
        axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{100 * value:.4g} %"))
    sheet.text(left + wide / 2, EDGE, scale.across, ha="center")
    sheet.text(left, below + high_inches + 1.5 * GAP, scale.up, ha="left")
    return axes


def write_names(
    axes: Axes,
    lines: Mapping[str, Line],
    ends: Mapping[str, float],
    named: set[str],
    sheet: Sheet,
    size: tuple[float, float],
    slot: float,
) -> None:
    """Names to the right, in the order of the lines' ends, joined to them by thin leaders."""
    low, high = axes.get_ylim()
    left, right = axes.get_xlim()
    per_inch = (high - low) / size[1]
    order = [name for name in lines if name in named]
    wanted = [ends[name] for name in order]
    room = spread(wanted, slot * per_inch, low, high)
    across = (right - left) / size[0]
    for name, end, y in zip(order, wanted, room, strict=True):
        number = list(lines).index(name)
        line = lines[name]
        last = line.x[np.isfinite(line.y)][-1]
        axes.plot(
            [last, right + 0.4 * LEADER * across, right + 0.8 * LEADER * across],
            [end, y, y],
            color=PALETTE[number % 7],
            linewidth=0.6,
            alpha=0.6,
            clip_on=False,
            zorder=1,
        )
        axes.text(
            right + LEADER * across,
            y,
            plain(name),
            size=SMALL,
            color=INK,
            va="center_baseline",
            parse_math=False,
        )


def spread(wanted: Sequence[float], gap: float, low: float, high: float) -> list[float]:
    """Positions at least `gap` apart, in the same order, as near to the wanted ones as a few pushes make them.

    >>> [round(y, 2) for y in spread([0.5, 0.5, 0.9], 0.1, 0.0, 1.0)]
    [0.45, 0.55, 0.9]
    """
    order = sorted(range(len(wanted)), key=lambda i: (wanted[i], i))
    # Blocks of touching names, each centred on what its members want.
    blocks: list[list[int]] = []

    def middle(block: list[int]) -> float:
        centre = sum(wanted[i] for i in block) / len(block)
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
    placed = [0.0] * len(wanted)
    for block in blocks:
        base = middle(block) - gap * (len(block) - 1) / 2
        for step, i in enumerate(block):
            placed[i] = base + gap * step
    return placed


def limits(lines: Sequence[Line], within: tuple[float, float]) -> tuple[float, float]:
    """What the lines and bands span, with a little room, from zero where that is near."""
    parts = [line.y for line in lines] + [edge for line in lines if line.band for edge in line.band]
    values = np.concatenate(parts) if parts else np.zeros(0)
    values = values[np.isfinite(values)]
    if not len(values):
        return within
    low, high = float(values.min()), float(values.max())
    room = 0.06 * (high - low) or 0.05 * abs(high) or 0.05
    low, high = low - room, high + room
    if low < 0.4 * high:
        low = min(low, within[0]) if within[0] > -1 else low
    return max(low, within[0]), min(high, within[1])


def few(points: Values) -> bool:
    """Whether a line needs its dots: few points, or gaps in which a point would vanish."""
    return bool(len(points) <= 12 or not np.isfinite(points).all())


__all__ = ["Line", "Scale", "few", "lines_figure", "spread"]
