"""The report of an audit: what its document says, and the ledger of the files it is about."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from markupsafe import Markup

from celm.report.evidence_figure import evidence_figure, shares_figure
from celm.report.inline import inline_svg
from celm.report.page import counted, percent, render, shown
from celm.report.rounds_figure import rounds_figure
from celm.report.scores_figure import scores_figure
from celm.report.sentences import few_starts, listed


def audit_page(document: Mapping[str, Any], files: Sequence[Mapping[str, Any]] = ()) -> str:
    """One page, from the audit's result and the ledger's entries alone."""
    sole: dict[str, list[str]] = {name: [] for name in document["scores"]}
    for name, client in document["sole_holders"].items():
        sole[client].append(name)
    context = {
        "title": "Contribution audit",
        "document": document,
        "settings": document["settings"],
        "sole": sole,
        "answers": {name: sentence(document, name, sole[name]) for name in document["scores"]},
        "most": max(document["scores"].values()) or 1.0,
        "totals": {name: sum(row) for name, row in document["evidence"].items()},
        "figures": figures(document),
        "caveat": few_starts(document["settings"]["starts"]),
        "several": len(document["rounds"]) > 1,
        "files": files,
    }
    return render("audit.html", context)


def sentence(document: Mapping[str, Any], name: str, sole: Sequence[str]) -> str:
    error = document["probe_standard_errors"][name]
    parts = [
        percent(document["scores"][name])
        + ("" if error is None else f" ± {percent(error)}")
        + " of the evidence"
    ]
    if document["holds"] is not None:
        parts.append(f"surely holds {len(document['holds'][name])} of {len(document['classes'])} classes")
    if sole:
        parts.append(f"sole holder of {listed(sole)}")
    if name in document["flags"]:
        parts.append("flagged as a free-rider")
    return "; ".join(parts)


def figures(document: Mapping[str, Any]) -> dict[str, Markup | None]:
    classes, evidence, scores = document["classes"], document["evidence"], document["scores"]
    size = f"{counted(len(scores), 'client')} by {counted(len(classes), 'class')}"
    told = ", ".join(f"{shown(name, 24)} {percent(score)}" for name, score in list(scores.items())[:12])
    made: dict[str, Markup | None] = dict.fromkeys(("scores", "evidence", "shares", "rounds"))
    made["scores"] = inline_svg(
        scores_figure(scores, document["probe_standard_errors"], document["flags"]),
        "scores",
        f"Bars of the scores of {counted(len(scores), 'client')}: {told}.",
    )
    if any(map(sum, evidence.values())):
        made["evidence"] = inline_svg(
            evidence_figure(evidence, classes), "evidence", f"Heatmap of evidence, {size}."
        )
        made["shares"] = inline_svg(
            shares_figure(evidence, classes), "shares", f"Heatmap of each client's share of a class, {size}."
        )
    if sum(bool(record["scores"]) for record in document["rounds"]) > 1:
        made["rounds"] = inline_svg(
            rounds_figure(document["rounds"], "scores"),
            "rounds",
            f"Lines of scores over {len(document['rounds'])} rounds, one a client.",
        )
    return made
