"""Lay out a figure in inches around its measured texts, so that nothing overlaps for any names."""

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
from celm.report.formatting import printable_line
from celm.report.style import INK, LINE, MUTED

TEXT_SIZE, SMALL_TEXT_SIZE, _TITLE_SIZE = 8.5, 7.0, 10.5
"""Font sizes in points."""
GAP, EDGE = 0.09, 0.15
"""Inches: between neighbours, around the figure."""
MIN_READABLE_CELL, _MAX_GRID_SIZE = 0.25, 40.0
"""Inches: the smallest cell with a readable label, the largest width or height of a grid."""
TRUTH_COLOUR = "#C62828"
"""Frame of a class that the client truly holds; the paper's red."""

Matrix = NDArray[np.float64]


class FigureLayout:
    """An empty figure that measures texts and places axes. Coordinates start at the lower left corner."""

    def __init__(self) -> None:
        self.figure = Figure()
        self.canvas: Any = FigureCanvasAgg(self.figure)  # Any: its renderer is untyped
        self.width = self.height = 1.0

    def text_size(
        self, texts: Iterable[str], size: float = TEXT_SIZE, weight: str = "normal"
    ) -> tuple[float, float]:
        """Return the largest width and the largest height of the texts in inches; zero without texts."""
        font = FontProperties(size=size, weight=weight)
        renderer = self.canvas.get_renderer()
        extents = [renderer.get_text_width_height_descent(text, font, False) for text in texts if text]
        if not extents:
            return 0.0, 0.0
        return max(m[0] for m in extents) / self.figure.dpi, max(m[1] for m in extents) / self.figure.dpi

    def title_height(self, title: str | None) -> float:
        """Return the inches that the title needs at the top."""
        return 0.0 if title is None else self.text_size([title], _TITLE_SIZE, "bold")[1] + 2 * GAP

    def resize(self, width: float, height: float, title: str | None = None) -> None:
        """Set the size and draw the title. A long title widens the figure."""
        if title is not None:
            width = max(width, self.text_size([title], _TITLE_SIZE, "bold")[0] + 2 * EDGE)
        self.width, self.height = width, height
        self.figure.set_size_inches(width, height)
        if title is not None:
            self.text(EDGE, height - EDGE, title, size=_TITLE_SIZE, weight="bold", va="top", color=INK)

    def add_axes(self, x: float, y: float, width: float, height: float) -> Axes:
        """Add axes without spines and ticks; all arguments are inches."""
        axes = self.figure.add_axes(
            (x / self.width, y / self.height, width / self.width, height / self.height)
        )
        axes.spines[:].set_visible(False)
        axes.set(xticks=[], yticks=[])
        return axes

    def text(self, x: float, y: float, text: str, **properties: Any) -> None:
        """Draw a text at a position in inches. The text is not parsed as mathematics."""
        settings = {"size": TEXT_SIZE, "color": MUTED, "parse_math": False, **properties}
        self.figure.text(x / self.width, y / self.height, text, **settings)


@dataclass(frozen=True)
class TickLabels:
    """Rotation and size of the labels below a grid."""

    rotation: int
    """Degrees: 0, 45 or 90."""
    height: float
    """Inches."""
    overhang: float
    """Inches to the left of the centre of the first cell."""


def fit_column_labels(layout: FigureLayout, names: Sequence[str], cell_width: float) -> TickLabels:
    """Choose the smallest rotation at which the names fit below cells of this width."""
    width, height = layout.text_size(names)
    rotation = 0 if width < 0.92 * cell_width else 45 if cell_width >= MIN_READABLE_CELL * 0.8 else 90
    angle = math.radians(rotation)
    labels_height = GAP + width * math.sin(angle) + height * (math.cos(angle) or 0.5)
    overhangs = {0: width / 2, 45: width * math.cos(angle), 90: height}
    return TickLabels(rotation, labels_height, overhangs[rotation])


def label_columns(axes: Axes, names: Sequence[str], cell_width: float, tick_labels: TickLabels) -> None:
    """Write the names below the columns; narrow cells show every n-th name."""
    stride = math.ceil(0.6 * MIN_READABLE_CELL / cell_width)
    rotation = tick_labels.rotation
    axes.set_xticks(
        range(0, len(names), stride),
        names[::stride],
        parse_math=False,
        size=TEXT_SIZE,
        rotation=rotation,
        rotation_mode="anchor" if rotation else "default",
        ha="right" if rotation else "center",
        va={0: "top", 45: "top", 90: "center"}[rotation],
    )
    axes.tick_params(axis="x", pad=GAP * 72)


def label_rows(axes: Axes, names: Sequence[str], cell_height: float) -> None:
    """Write the names to the left of the rows; low cells show every n-th name."""
    stride = math.ceil(0.6 * MIN_READABLE_CELL / cell_height)
    axes.set_yticks(range(0, len(names), stride), names[::stride], parse_math=False, size=TEXT_SIZE)
    axes.tick_params(axis="y", pad=GAP * 72)


def cell_size(count: int, preferred_total: float, max_size: float) -> float:
    """Return the inches of one of `count` cells: readable, unless the grid would exceed `_MAX_GRID_SIZE`."""
    return min(max_size, max(MIN_READABLE_CELL, preferred_total / count), _MAX_GRID_SIZE / count)


def draw_bubbles(axes: Axes, areas: Matrix, colour: str) -> None:
    """Draw a bubble in each cell of a grid, by its area in points squared. A zero area has no bubble."""
    rows, columns = areas.shape
    row_indices, column_indices = np.nonzero(areas)
    axes.hlines(range(rows), -0.5, columns - 0.5, colors=LINE, linewidths=0.8, zorder=0)
    axes.vlines(range(columns), -0.5, rows - 0.5, colors=LINE, linewidths=0.8, zorder=0)
    axes.scatter(
        column_indices, row_indices, s=areas[row_indices, column_indices], color=colour, linewidths=0
    )
    axes.set(xlim=(-0.5, columns - 0.5), ylim=(rows - 0.5, -0.5))


def outline_cells(axes: Axes, mask: NDArray[np.bool_], inset: float = 0.06, linewidth: float = 1.4) -> None:
    """Draw a red frame in each cell of the mask."""
    for y, x in np.argwhere(mask):
        axes.add_patch(
            Rectangle(
                (x - 0.5 + inset, y - 0.5 + inset),
                1 - 2 * inset,
                1 - 2 * inset,
                fill=False,
                edgecolor=TRUTH_COLOUR,
                linewidth=linewidth,
                zorder=3,
            )
        )


def client_class_matrix(rows: Mapping[str, Sequence[float]], subject: str) -> Matrix:
    """Return the rows as a client x class matrix. Raise CelmError for ragged, negative or non-finite rows."""
    lengths = {len(row) for row in rows.values()}
    if len(lengths) != 1 or lengths == {0}:
        raise CelmError(f"cannot draw {subject}: every client needs a number for every class")
    table = np.array([list(row) for row in rows.values()], dtype=np.float64)
    if not np.isfinite(table).all() or (table < 0).any():
        raise CelmError(f"cannot draw {subject}: a number is negative or not finite")
    return table


def truth_mask(
    counts: Mapping[str, Sequence[float]] | None, clients: Iterable[str], classes: int, subject: str
) -> NDArray[np.bool_] | None:
    """Return a mask of the classes that each client truly holds `[N, K]`, in the order of `clients`.

    Return None without `counts`. A client that has no counts holds no class.
    """
    if counts is None:
        return None
    if any(len(row) != classes for row in counts.values()):
        raise CelmError(f"cannot draw {subject}: every client needs a count for every class")
    zeros = [0.0] * classes
    return np.array([[count > 0 for count in counts.get(client, zeros)] for client in clients])


def class_labels(names: Sequence[str] | None, classes: int, subject: str) -> list[str]:
    """Return a printable label per class; by default its number."""
    if names is None:
        return [str(k) for k in range(classes)]
    if len(names) != classes:
        raise CelmError(f"cannot draw {subject}: {len(names)} class names for {classes} classes")
    return [printable_line(name) for name in names]


def format_title(title: str | None) -> str | None:
    """Return the title as one printable line."""
    return None if title is None else printable_line(title, max_length=200)
