"""The inputs at which the probes ended: a row a client, a column a class (the paper's last figure)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from numpy.typing import NDArray

from celm.base.errors import CelmError
from celm.report.sheet import (
    EDGE,
    GAP,
    Sheet,
    cell,
    class_labels,
    heading_text,
    held_by,
    label_columns,
    label_rows,
    names_below,
    outline,
)
from celm.report.style import look, plain, save_figure

__all__ = ["drawable", "probe_figure", "save_figure"]

CELL, BETWEEN = 0.6, 0.08
"""The largest cell in inches, and the part of it that is empty."""


def drawable(shape: Sequence[int]) -> bool:
    """Whether inputs of this shape are images: `[1, H, W]`, `[3, H, W]` or `[H, W]`."""
    return len(shape) == 2 or (len(shape) == 3 and shape[0] in (1, 3))


def probe_figure(
    inputs: Mapping[str, Any],
    class_names: Sequence[str] | None = None,
    counts: Mapping[str, Sequence[float]] | None = None,
    title: str | None = None,
) -> Axes:
    """Images by client name, `[K, C, H, W]` or `[K, H, W]`, arrays or tensors; each scaled by its own range.

    Where `counts` are known, the classes that a client truly held are outlined in red.
    """
    images = {name: np.asarray(value, dtype=np.float64) for name, value in inputs.items()}
    shapes = {image.shape for image in images.values()}
    shape = next(iter(shapes), ())
    if len(shapes) != 1 or not drawable(shape[1:]) or 0 in shape:
        raise CelmError(
            "cannot draw the probes: they must be images of one shape, [classes, 1 or 3, height, width]"
        )
    columns = shape[0]
    classes = class_labels(class_names, columns, "the probes")
    held = held_by(counts, inputs, columns, "the probes")
    heading = heading_text(title)
    with look():
        rows = len(images)
        size = min(cell(columns, 9.0, CELL), cell(rows, 12.0, CELL))
        sheet = Sheet()
        clients = [plain(name) for name in images]
        names = names_below(sheet, classes, size)
        left = max(EDGE + sheet.extent(clients)[0] + GAP, EDGE + names.beyond - size / 2)
        below = EDGE + names.below + GAP + sheet.extent(["class"])[1]
        sheet.resize(
            left + columns * size + EDGE, below + rows * size + sheet.heading(heading) + EDGE, heading
        )
        axes = sheet.place(left, below, columns * size, rows * size)
        half = 0.5 - BETWEEN / 2
        for y, image in enumerate(images.values()):
            for x in range(columns):
                axes.imshow(
                    scaled(image[x]),
                    cmap="gray",
                    vmin=0,
                    vmax=1,
                    extent=(x - half, x + half, y + half, y - half),
                    interpolation="nearest",
                    aspect="auto",
                )
        if held is not None:
            outline(axes, held, inset=BETWEEN / 4)
        axes.set(xlim=(-0.5, columns - 0.5), ylim=(rows - 0.5, -0.5))
        label_rows(axes, clients, size)
        label_columns(axes, classes, size, names)
        sheet.text(left + columns * size / 2, EDGE, "class", ha="center")
    return axes


def scaled(image: NDArray[np.float64]) -> NDArray[np.float64]:
    """One image from 0 to 1 by its own range, channels last; a flat or broken one is mid-grey."""
    image = np.nan_to_num(image, nan=0.0, posinf=0.0, neginf=0.0)
    least, most = float(image.min()), float(image.max())
    unit = (image - least) / (most - least) if most > least else np.full_like(image, 0.5)
    if unit.ndim == 2:
        return unit
    return unit[0] if len(unit) == 1 else np.moveaxis(unit, 0, -1)
