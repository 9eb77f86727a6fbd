"""A figure laid out in inches around its texts, so that nothing overlaps whatever the names are."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.font_manager import FontProperties
from matplotlib.patches import Rectangle
from numpy.typing import NDArray

from celm.base.errors import CelmError
from celm.report.style import INK, LINE, MUTED, plain

TEXT, SMALL, HEADING = 8.5, 7.0, 10.5
"""Font sizes in points."""
GAP, EDGE = 0.09, 0.15
"""Inches: between neighbours, around the figure."""
READABLE, LARGEST = 0.25, 40.0
"""Inches: the smallest cell with a readable label, the widest and highest grid."""
TRUTH = "#C62828"
"""Around what is known to be held; the paper's red."""

Matrix = NDArray[np.float64]


class Sheet:
    """An empty figure that can measure texts and place axes, from the lower left corner."""

    def __init__(self) -> None:
        self.figure = Figure()
        self.canvas: Any = FigureCanvasAgg(self.figure)  # Any: what it measures texts with is untyped
        self.width = self.height = 1.0

    def extent(self, texts: Iterable[str], size: float = TEXT, weight: str = "normal") -> tuple[float, float]:
        """Width and height in inches of the largest of some texts; of none, zero."""
        font = FontProperties(size=size, weight=weight)
        renderer = self.canvas.get_renderer()
        measured = [renderer.get_text_width_height_descent(text, font, False) for text in texts if text]
        if not measured:
            return 0.0, 0.0
        return max(m[0] for m in measured) / self.figure.dpi, max(m[1] for m in measured) / self.figure.dpi

    def heading(self, title: str | None) -> float:
        """Inches that a title needs on top."""
        return 0.0 if title is None else self.extent([title], HEADING, "bold")[1] + 2 * GAP

    def resize(self, width: float, height: float, title: str | None = None) -> None:
        """Set the size and write the title, which may widen the figure."""
        if title is not None:
            width = max(width, self.extent([title], HEADING, "bold")[0] + 2 * EDGE)
        self.width, self.height = width, height
        self.figure.set_size_inches(width, height)
        if title is not None:
            self.text(EDGE, height - EDGE, title, size=HEADING, weight="bold", va="top", color=INK)

    def place(self, x: float, y: float, width: float, height: float) -> Axes:
        axes = self.figure.add_axes(
            (x / self.width, y / self.height, width / self.width, height / self.height)
        )
        axes.spines[:].set_visible(False)
        axes.set(xticks=[], yticks=[])
        return axes

    def text(self, x: float, y: float, text: str, **look: Any) -> None:
        settings = {"size": TEXT, "color": MUTED, "parse_math": False, **look}
        self.figure.text(x / self.width, y / self.height, text, **settings)


@dataclass(frozen=True)
class Names:
    """Names along the lower side of a grid: how they are turned, and the inches they need."""

    tilt: int
    below: float
    beyond: float
    """To the left of the first cell's middle."""


def names_below(sheet: Sheet, names: Sequence[str], wide: float) -> Names:
    """Level where they fit, else aslant, else upright."""
    width, height = sheet.extent(names)
    tilt = 0 if width < 0.92 * wide else 45 if wide >= READABLE * 0.8 else 90
    slope = math.radians(tilt)
    below = GAP + width * math.sin(slope) + height * (math.cos(slope) or 0.5)
    return Names(tilt, below, width * math.cos(slope) if tilt == 45 else width / 2 if tilt == 0 else height)


def label_columns(axes: Axes, names: Sequence[str], wide: float, turned: Names) -> None:
    every = math.ceil(0.6 * READABLE / wide)
    tilt = turned.tilt
    axes.set_xticks(
        range(0, len(names), every),
        names[::every],
        parse_math=False,
        size=TEXT,
        rotation=tilt,
        rotation_mode="anchor" if tilt else "default",
        ha="right" if tilt else "center",
        va={0: "top", 45: "top", 90: "center"}[tilt],
    )
    axes.tick_params(axis="x", pad=GAP * 72)


def label_rows(axes: Axes, names: Sequence[str], high: float) -> None:
    every = math.ceil(0.6 * READABLE / high)
    axes.set_yticks(range(0, len(names), every), names[::every], parse_math=False, size=TEXT)
    axes.tick_params(axis="y", pad=GAP * 72)


def cell(number: int, comfortable: float, largest: float) -> float:
    """Inches of a cell: as large as fits a comfortable grid, readable if at all possible."""
    return min(largest, max(READABLE, comfortable / number), LARGEST / number)


def bubbles(axes: Axes, areas: Matrix, colour: str) -> None:
    """A bubble in each cell of a grid, by its area in points squared (as scatter wants it); of no area, none."""
    rows, columns = areas.shape
    down, across = np.nonzero(areas)
    axes.hlines(range(rows), -0.5, columns - 0.5, colors=LINE, linewidths=0.8, zorder=0)
    axes.vlines(range(columns), -0.5, rows - 0.5, colors=LINE, linewidths=0.8, zorder=0)
    axes.scatter(across, down, s=areas[down, across], color=colour, linewidths=0)
    axes.set(xlim=(-0.5, columns - 0.5), ylim=(rows - 0.5, -0.5))


def outline(axes: Axes, held: NDArray[np.bool_], inset: float = 0.06, width: float = 1.4) -> None:
    """A red frame within each cell that is truly held."""
    for y, x in np.argwhere(held):
        axes.add_patch(
            Rectangle(
                (x - 0.5 + inset, y - 0.5 + inset),
                1 - 2 * inset,
                1 - 2 * inset,
                fill=False,
                edgecolor=TRUTH,
                linewidth=width,
                zorder=3,
            )
        )


def matrix(rows: Mapping[str, Sequence[float]], what: str) -> Matrix:
    """Client x class numbers: finite, none negative, every client with as many."""
    lengths = {len(row) for row in rows.values()}
    if len(lengths) != 1 or lengths == {0}:
        raise CelmError(f"cannot draw {what}: every client needs a number for every class")
    table = np.array([list(row) for row in rows.values()], dtype=np.float64)
    if not np.isfinite(table).all() or (table < 0).any():
        raise CelmError(f"cannot draw {what}: a number is negative or not finite")
    return table


def held_by(
    counts: Mapping[str, Sequence[float]] | None, clients: Iterable[str], classes: int, what: str
) -> NDArray[np.bool_] | None:
    """Which cells are truly held, in the order of `clients`; a client without counts holds nothing."""
    if counts is None:
        return None
    if any(len(row) != classes for row in counts.values()):
        raise CelmError(f"cannot draw {what}: every client needs a count for every class")
    nothing = [0.0] * classes
    return np.array([[count > 0 for count in counts.get(client, nothing)] for client in clients])


def class_labels(names: Sequence[str] | None, classes: int, what: str) -> list[str]:
    if names is None:
        return [str(k) for k in range(classes)]
    if len(names) != classes:
        raise CelmError(f"cannot draw {what}: {len(names)} class names for {classes} classes")
    return [plain(name) for name in names]


def heading_text(title: str | None) -> str | None:
    return None if title is None else plain(title, longest=200)
