"""Figures that the pages of runs, federations and audits share, as inline SVG with text alternatives.

With more clients than `MAX_LISTED`, figures show groups or the distribution in place of single clients.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any, Literal

import numpy as np
from markupsafe import Markup

from celm.report.bar_figures import scores_figure
from celm.report.formatting import describe_size, format_name, join_percents, pluralise
from celm.report.group_figures import distribution_figure, group_figure, spread_figure
from celm.report.heatmap_figures import evidence_figure, shares_figure
from celm.report.line_figures import QUANTITY_LABELS, rounds_figure
from celm.report.many_clients import MAX_LISTED, outer_clients
from celm.report.svg import inline_svg


def draw_evidence(
    evidence: Mapping[str, Sequence[float]] | None, classes: Sequence[str]
) -> dict[str, Markup | None]:
    """Draw `evidence` and `shares`, rows in the given order; None for both if there is no evidence."""
    if not evidence or not any(map(sum, evidence.values())):
        return {"evidence": None, "shares": None}
    size = describe_size(evidence, classes)
    if len(evidence) > MAX_LISTED:
        axes = (
            group_figure(evidence, classes, "mean evidence"),
            group_figure(evidence, classes, "% of a class's evidence", shares=True),
        )
        size += ", in groups of clients with similar weight"
    else:
        axes = evidence_figure(evidence, classes), shares_figure(evidence, classes)
    return {
        "evidence": inline_svg(
            axes[0], "evidence", f"Heatmap of evidence, {size}. {_describe_highest(evidence, classes)}"
        ),
        "shares": inline_svg(
            axes[1], "shares", f"Heatmap of each client's share of a class's evidence, {size}."
        ),
    }


def _describe_highest(evidence: Mapping[str, Sequence[float]], classes: Sequence[str]) -> str:
    table = np.array(list(evidence.values()))
    row, k = (int(i) for i in np.unravel_index(int(table.argmax()), table.shape))
    client = list(evidence)[row]
    return f"Highest: {format_name(client, 24)} for class {format_name(classes[k], 24)}, {table[row, k]:.2f}."


def draw_rounds(
    records: Sequence[Mapping[str, Any]],
    quantity: Literal["client_weights", "scores"],
    final_weights: Mapping[str, float] | None = None,
) -> Markup | None:
    """Draw weights or scores over the rounds; None if fewer than two rounds have them."""
    if sum(bool(record[quantity]) for record in records) < 2:
        return None
    name = "weights" if quantity == "client_weights" else "scores"
    over = f"{name.capitalize()} over {pluralise(len(records), 'round')}"
    if max(len(record[quantity] or ()) for record in records) > MAX_LISTED:
        label = f"{over}: median, middle half and outer twentieths of the clients, and the heaviest clients."
        return inline_svg(spread_figure(records, quantity, QUANTITY_LABELS[quantity]), name, label)
    label = f"{over}, one line per client."
    if final_weights:
        label += f" At the end: {join_percents(final_weights.items())}."
    return inline_svg(rounds_figure(records, quantity), name, label)


def draw_distribution(
    weights: Mapping[str, float], flagged: Collection[str] = (), noun: str = "weight"
) -> Markup | None:
    """Draw how many clients have which weight; None if there are few enough to list them all."""
    outer = outer_clients(weights, noun)
    if outer is None:
        return None
    label = f"Histogram of the {noun}s of {pluralise(len(weights), 'client')}. {outer.distribution}"
    return inline_svg(distribution_figure(weights, flagged, noun), "distribution", label)


def draw_score_bars(
    scores: Mapping[str, float], errors: Mapping[str, float | None], flagged: Collection[str]
) -> Markup | None:
    """Draw one bar per client; None if there are too many clients for bars."""
    if len(scores) > MAX_LISTED:
        return None
    label = f"Bars of the scores of {pluralise(len(scores), 'client')}: {join_percents(scores.items())}."
    return inline_svg(scores_figure(scores, errors, flagged), "scores_by_client", label)
