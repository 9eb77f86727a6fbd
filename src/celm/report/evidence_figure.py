"""Evidence by client and class, and each client's share of a class's evidence, as heatmaps."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np
from matplotlib.axes import Axes

from celm.report.heatmap import heatmap
from celm.report.sheet import Matrix, class_labels, heading_text, held_by, matrix
from celm.report.style import look, plain, save_figure

__all__ = ["evidence_figure", "save_figure", "shares_figure", "shares_of"]


def evidence_figure(
    evidence: Mapping[str, Sequence[float]],
    class_names: Sequence[str] | None = None,
    counts: Mapping[str, Sequence[float]] | None = None,
    title: str | None = None,
) -> Axes:
    """Heatmap of Q: client name to evidence by class. Where `counts` are known, what is truly held is outlined."""
    table = matrix(evidence, "the evidence")
    return draw(table, evidence, class_names, counts, title, "evidence", readable(float(table.max())))


def shares_figure(
    evidence: Mapping[str, Sequence[float]],
    class_names: Sequence[str] | None = None,
    counts: Mapping[str, Sequence[float]] | None = None,
    title: str | None = None,
) -> Axes:
    """Heatmap of the columns of Q, each divided by its sum: who brought which part of a class, in percent."""
    table = shares_of(matrix(evidence, "the shares"))
    return draw(
        table, evidence, class_names, counts, title, "% of a class's evidence", lambda v: f"{100 * v:.0f}"
    )


def shares_of(evidence: Matrix) -> Matrix:
    """Columns divided by their sums; a class without evidence has shares of zero.

    >>> shares_of(np.array([[1.0, 0.0], [3.0, 0.0]])).tolist()
    [[0.25, 0.0], [0.75, 0.0]]
    """
    total = evidence.sum(axis=0)
    shares: Matrix = np.divide(evidence, total, out=np.zeros_like(evidence), where=total > 0)
    return shares


def draw(
    table: Matrix,
    rows: Mapping[str, Sequence[float]],
    class_names: Sequence[str] | None,
    counts: Mapping[str, Sequence[float]] | None,
    title: str | None,
    key: str,
    shown: Callable[[float], str],
) -> Axes:
    what = "the evidence"
    classes = class_labels(class_names, table.shape[1], what)
    held = held_by(counts, rows, table.shape[1], what)
    with look():
        return heatmap(
            table,
            [plain(name) for name in rows],
            classes,
            title=heading_text(title),
            across="class",
            key=key,
            shown=shown,
            held=held,
        )


def readable(most: float) -> Callable[[float], str]:
    """Numbers with as many decimals as a cell has room for.

    >>> readable(3.0)(0.5), readable(30.0)(0.5), readable(3000.0)(0.5)
    ('0.50', '0.5', '0')
    """
    decimals = 2 if most < 9.995 else 1 if most < 99.95 else 0
    return lambda value: f"{value:.{decimals}f}"
