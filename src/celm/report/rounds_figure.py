"""Weights, or scores, of every client over the rounds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

import numpy as np
from matplotlib.axes import Axes
from numpy.typing import ArrayLike

from celm.base.errors import CelmError
from celm.base.names import in_order
from celm.report.lines import Line, Scale, few, lines_figure
from celm.report.sheet import heading_text
from celm.report.style import look, save_figure

__all__ = ["rounds_figure", "save_figure"]

NAMES = {
    "standing": "weight over all clients",
    "weights": "weight in the round's average",
    "scores": "score of the round",
}


def rounds_figure(
    records: Sequence[Mapping[str, Any]],
    of: Literal["standing", "weights", "scores"] = "standing",
    title: str | None = None,
) -> Axes:
    """A line a client from a run's records: its standing weight, its weight in the round, or its score."""
    rows = [record.get(of) or {} for record in records]
    clients = in_order({client for row in rows for client in row})
    values = np.array([[row.get(client) for row in rows] for client in clients], dtype=np.float64)
    known = np.isfinite(values)
    if not known.any():
        raise CelmError(f"cannot draw the {of}: no round has any")
    rounds = np.array([record["round"] for record in records], dtype=np.float64)
    # As far as there is something to see: scores end with the warm-up.
    kept = between(known.any(axis=0))
    lines = {}
    for client, y, seen in zip(clients, np.where(known, values, np.nan), known, strict=True):
        if seen.any():
            lines[client] = Line(rounds[kept], y[kept], mark=few(y[between(seen)]))
    most = max(float(np.nanmax(line.y)) for line in lines.values())
    scale = Scale("round", NAMES[of], limits=(0.0, 1.06 * most if most > 0 else 1.0))
    with look():
        return lines_figure(lines, scale, heading_text(title))


def between(true: ArrayLike) -> slice:
    """From the first that is true to the last."""
    places = np.flatnonzero(true)
    return slice(places[0], places[-1] + 1)
