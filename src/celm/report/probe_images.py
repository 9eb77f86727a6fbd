"""Grid of the inputs at the end of the probes: one row per client, one column per class (the paper's last figure)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from numpy.typing import NDArray

from celm.base.errors import CelmError
from celm.report.figure_layout import (
    EDGE,
    GAP,
    FigureLayout,
    cell_size,
    class_labels,
    fit_column_labels,
    format_title,
    label_columns,
    label_rows,
    outline_cells,
    truth_mask,
)
from celm.report.formatting import printable_line
from celm.report.style import figure_style

_MAX_CELL, _CELL_GAP = 0.6, 0.08
"""The largest cell in inches, and the fraction of a cell that stays empty."""


def is_image_shape(shape: Sequence[int]) -> bool:
    """Return whether inputs of this shape are images: `[1, H, W]`, `[3, H, W]` or `[H, W]`."""
    return len(shape) == 2 or (len(shape) == 3 and shape[0] in (1, 3))


def probe_figure(
    inputs: Mapping[str, Any],
    class_names: Sequence[str] | None = None,
    counts: Mapping[str, Sequence[float]] | None = None,
    title: str | None = None,
) -> Axes:
    """Draw `inputs`, client name to images `[K, C, H, W]` or `[K, H, W]`, each scaled by its own range.

    Images are arrays or tensors. With `counts`, the classes that a client truly holds are outlined in red.
    """
    images = {name: np.asarray(value, dtype=np.float64) for name, value in inputs.items()}
    shapes = {image.shape for image in images.values()}
    shape = next(iter(shapes), ())
    if len(shapes) != 1 or not is_image_shape(shape[1:]) or 0 in shape:
        raise CelmError(
            "cannot draw the probes: they must be images of one shape, [classes, 1 or 3, height, width]"
        )
    columns = shape[0]
    classes = class_labels(class_names, columns, "the probes")
    truth = truth_mask(counts, inputs, columns, "the probes")
    title_text = format_title(title)
    with figure_style():
        rows = len(images)
        cell_width = min(cell_size(columns, 9.0, _MAX_CELL), cell_size(rows, 12.0, _MAX_CELL))
        layout = FigureLayout()
        clients = [printable_line(name) for name in images]
        tick_labels = fit_column_labels(layout, classes, cell_width)
        left_margin = max(
            EDGE + layout.text_size(clients)[0] + GAP, EDGE + tick_labels.overhang - cell_width / 2
        )
        bottom_margin = EDGE + tick_labels.height + GAP + layout.text_size(["class"])[1]
        layout.resize(
            left_margin + columns * cell_width + EDGE,
            bottom_margin + rows * cell_width + layout.title_height(title_text) + EDGE,
            title_text,
        )
        axes = layout.add_axes(left_margin, bottom_margin, columns * cell_width, rows * cell_width)
        half_width = 0.5 - _CELL_GAP / 2
        for y, image in enumerate(images.values()):
            for x in range(columns):
                axes.imshow(
                    _scale_image(image[x]),
                    cmap="gray",
                    vmin=0,
                    vmax=1,
                    extent=(x - half_width, x + half_width, y + half_width, y - half_width),
                    interpolation="nearest",
                    aspect="auto",
                )
        if truth is not None:
            outline_cells(axes, truth, inset=_CELL_GAP / 4)
        axes.set(xlim=(-0.5, columns - 0.5), ylim=(rows - 0.5, -0.5))
        label_rows(axes, clients, cell_width)
        label_columns(axes, classes, cell_width, tick_labels)
        layout.text(left_margin + columns * cell_width / 2, EDGE, "class", ha="center")
    return axes


def _scale_image(image: NDArray[np.float64]) -> NDArray[np.float64]:
    """Scale an image to 0..1 by its own range, channels last. A constant image becomes mid-grey."""
    image = np.nan_to_num(image, nan=0.0, posinf=0.0, neginf=0.0)
    smallest, largest = float(image.min()), float(image.max())
    unit = (image - smallest) / (largest - smallest) if largest > smallest else np.full_like(image, 0.5)
    if unit.ndim == 2:
        return unit
    return unit[0] if len(unit) == 1 else np.moveaxis(unit, 0, -1)
