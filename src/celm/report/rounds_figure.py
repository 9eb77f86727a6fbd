"""Weights, or scores, of every client over the rounds."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import numpy as np
from matplotlib.axes import Axes

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
    if not clients:
        raise CelmError(f"cannot draw the {of}: no round has any")
    rounds = np.array([record["round"] for record in records], dtype=np.float64)
    lines = {}
    for client in clients:
        y = np.array([row.get(client, math.nan) for row in rows], dtype=np.float64)
        inside = np.flatnonzero(np.isfinite(y))
        lines[client] = Line(rounds, y, mark=few(y[inside[0] : inside[-1] + 1]))
    # As far as there is something to see: scores end with the warm-up.
    seen = [i for i, row in enumerate(rows) if row]
    kept = slice(seen[0], seen[-1] + 1)
    lines = {name: Line(line.x[kept], line.y[kept], mark=line.mark) for name, line in lines.items()}
    most = max(float(np.nanmax(line.y)) for line in lines.values())
    scale = Scale("round", NAMES[of], limits=(0.0, 1.06 * most if most > 0 else 1.0))
    with look():
        return lines_figure(lines, scale, heading_text(title))
