"""The report of an audit, from its document and the entries of its ledger."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from markupsafe import Markup

from celm.report.class_map import audit_map
from celm.report.client_summaries import (
    describe_evidence,
    describe_holdings,
    few_starts_note,
    join_class_names,
    no_evidence_note,
)
from celm.report.contribution_table import (
    Column,
    count_column,
    names_column,
    number_column,
    percent_column,
    rank_column,
    score_sources,
)
from celm.report.formatting import format_percent
from celm.report.many_clients import limit_rows, order_rows, outer_clients, percent_decimals, sort_by_weight
from celm.report.rank_stability import RankStability, rank_stability
from celm.report.shared_figures import draw_distribution, draw_evidence, draw_rounds, draw_score_bars
from celm.report.templating import render_page

_AUDIT = "the audit"


def audit_page(document: Mapping[str, Any], files: Sequence[Mapping[str, Any]] = ()) -> str:
    """Return the page of an audit's document; `files` are the entries of its ledger."""
    settings, scores = document["settings"], document["scores"]
    order = sort_by_weight(document["weights"] | {c: 0.0 for c in scores if c not in document["weights"]})
    order = [client for client in order if client in scores]
    sole_classes: dict[str, list[str]] = {client: [] for client in order}
    for class_name, client in document["sole_holders"].items():
        sole_classes[client].append(class_name)
    evidence = order_rows(document["evidence"], order)
    num_classes = len(document["classes"])
    stability = rank_stability(document["rounds"])
    context = {
        "title": "Contribution audit",
        "document": document,
        "settings": settings,
        "evidence_description": describe_evidence(settings),
        "order": order,
        "outer": outer_clients(scores, "score"),
        "weights": scores,
        "sentences": {
            client: _summarise_client(document, client, sole_classes[client], stability) for client in order
        },
        "class_map": audit_map(
            document["classes"],
            order,
            document["holds"],
            document.get("possibly_holds"),
            document["sole_holders"],
        ),
        "number_rows": score_sources(_AUDIT)[:1],
        "columns": _contribution_columns(document, sole_classes, stability),
        "stability": stability,
        "evidence": limit_rows(evidence, num_classes),
        "num_probed": len(evidence),
        "distribution": limit_rows(order_rows(document["distribution"], order), num_classes),
        "figures": _draw_figures(document, evidence),
        "caveats": list(filter(None, (no_evidence_note(scores), few_starts_note(settings["num_starts"])))),
        "has_several_rounds": len(document["rounds"]) > 1,
        "files": files,
    }
    return render_page("audit.html", context)


def _contribution_columns(
    document: Mapping[str, Any], sole_classes: Mapping[str, Sequence[str]], stability: RankStability
) -> list[Column]:
    scores = document["scores"]
    decimals = percent_decimals(len(scores))
    tested = (
        f"logits over the {document['settings']['num_starts']} starts of the probe, by the test in Limits"
    )
    holds, possibly = document["holds"] or {}, document.get("possibly_holds") or {}
    columns = [
        percent_column(
            "score",
            _AUDIT,
            "the client's shares of the evidence, averaged over classes",
            scores,
            decimals,
            has_meter=True,
        ),
        *_agreement_columns(document, decimals),
        percent_column(
            "± probe",
            _AUDIT,
            "the standard error of the score over the starts of the probe",
            document["probe_standard_errors"],
            decimals + 1,
        ),
        percent_column(
            "weight",
            _AUDIT,
            _describe_weights(len(document["rounds"])),
            document["weights"],
            decimals,
        ),
        number_column(
            "z-score",
            _AUDIT,
            "the distance of the score from the mean score, in standard deviations",
            document["z_scores"],
        ),
        number_column(
            "evidence",
            _AUDIT,
            "the change of the client's last layer; summed over classes"
            if document["settings"].get("evidence") == "head"
            else "the probe of the client's model for each class; summed over classes",
            {client: sum(row) for client, row in document["evidence"].items()},
        ),
        count_column("surely holds", _AUDIT, tested, {client: len(row) for client, row in holds.items()}),
        count_column("possibly", _AUDIT, tested, {client: len(row) for client, row in possibly.items()}),
        names_column("sole holder of", _AUDIT, "the same test; all others have no evidence", sole_classes),
        names_column(
            "flagged",
            _AUDIT,
            "coverage, and tensors of the models; see Limits",
            {c: ["yes"] for c in document["flags"]},
        ),
    ]
    return columns + ([rank_column(stability)] if len(document["rounds"]) > 1 else [])


def _agreement_columns(document: Mapping[str, Any], decimals: int) -> list[Column]:
    """Return the column of scores with agreement; none if it was not measured."""
    agreed = document.get("agreement_scores")
    source = "the same, with claims lowered where a client's rows disagree with those of other clients"
    return [] if agreed is None else [percent_column("with agreement", _AUDIT, source, agreed, decimals)]


def _describe_weights(num_rounds: int) -> str:
    """Return how the weights follow from the scores."""
    smoothed = "the scores, smoothed over the rounds as by the rule celm" if num_rounds > 1 else "the scores"
    return f"{smoothed}; 0 for a flagged client, and the others are scaled to sum 1"


def _summarise_client(
    document: Mapping[str, Any], client: str, sole_classes: Sequence[str], stability: RankStability
) -> str:
    decimals = percent_decimals(len(document["scores"]))
    error = document["probe_standard_errors"][client]
    parts = [
        format_percent(document["scores"][client], decimals)
        + ("" if error is None else f" ± {format_percent(error, decimals)}")
        + " of the evidence"
    ]
    if document["holds"] is not None:
        num_possibly = len((document.get("possibly_holds") or {}).get(client, ()))
        parts.append(
            describe_holdings(len(document["holds"][client]), num_possibly, len(document["classes"]))
        )
    if sole_classes:
        parts.append(f"sole holder of {join_class_names(sole_classes)}")
    if stability.num_rounds > 1 and client in stability.histories:
        parts.append(stability.histories[client].describe(decimals))
    if client in document["flags"]:
        parts.append("flagged as a free-rider")
    return "; ".join(parts)


def _draw_figures(
    document: Mapping[str, Any], evidence: Mapping[str, Sequence[float]]
) -> dict[str, Markup | None]:
    scores, flags = document["scores"], document["flags"]
    by_score = {client: scores[client] for client in evidence if client in scores}
    return draw_evidence(evidence, document["classes"]) | {
        "scores": draw_score_bars(by_score, document["probe_standard_errors"], flags),
        "distribution": draw_distribution(scores, flags, "score"),
        "rounds": draw_rounds(document["rounds"], "scores"),
    }
