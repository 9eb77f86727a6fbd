"""Tables of signed numbers as one figure: a panel for each, red to blue around zero, with the numbers in the cells."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import matplotlib
import numpy as np
from matplotlib.figure import Figure

Table = Mapping[str, Mapping[str, float]]
"""Row to column to value; unknown values are missing."""


def draw_panels(
    tables: Mapping[str, Table],
    columns: Sequence[str],
    *,
    label: str,
    limit: float,
    format_value: Callable[[float], str],
    colours: str = "RdBu",
) -> Figure:
    """Draw a panel for each table. Colours range from -`limit` to `limit`; values beyond have the last colour."""
    heights = [len(table) for table in tables.values()]
    figure = Figure(figsize=(2.8 + 0.75 * len(columns), 1.5 + 0.32 * sum(heights)), layout="constrained")
    rows = figure.subplots(len(tables), 1, squeeze=False, height_ratios=heights)[:, 0]
    for axes, (title, table) in zip(rows, tables.items(), strict=True):
        values = np.array([[cells.get(column, np.nan) for column in columns] for cells in table.values()])
        image = axes.imshow(values, cmap=colours, vmin=-limit, vmax=limit, aspect="auto")
        axes.set_title(title, loc="left", fontsize=10)
        axes.set_xticks(range(len(columns)), columns, rotation=30, ha="right")
        axes.set_yticks(range(len(table)), list(table))
        for (y, x), value in np.ndenumerate(values):
            if np.isfinite(value):
                ink = "white" if abs(value) > 0.6 * limit else "black"
                axes.text(x, y, format_value(value), ha="center", va="center", fontsize=8, color=ink)
    figure.colorbar(image, ax=list(rows), label=label, shrink=0.6)
    return figure


def save_figure(figure: Figure, path: Path) -> None:
    """Write the figure. The same figure gives the same bytes."""
    matplotlib.rcParams["svg.hashsalt"] = "celm"
    figure.savefig(path, metadata={"Date": None})
