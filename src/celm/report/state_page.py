"""The report of a Flower federation: what its record says, from the state folder only."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

from markupsafe import Markup

from celm.method.movement import IDLE
from celm.report.evidence_figure import evidence_figure, shares_figure
from celm.report.inline import inline_svg
from celm.report.page import counted, percent, render, shown
from celm.report.reading import ToldState
from celm.report.rounds_figure import rounds_figure
from celm.report.rounds_told import Exclusion, counted_in, excluded, frozen_after, gathered, spans
from celm.report.sentences import answers

VERDICTS = {
    "idle": f"did not work: its model moved by less than {IDLE} of what is usual",
    "unreadable": "its model could not be probed: it answers with numbers that are not finite",
    "faint": "no evidence: its model moved, but what it answers rises too little to count as learnt",
    "removed": "removed by the rule",
}


def state_page(told: ToldState) -> str:
    rounds, last = told.rounds, told.rounds[-1]
    left_out = Counter(client for each in rounds for client in each.excluded)
    found = answers(told.weights, told.evidence, told.classes, left_out)
    context = {
        "title": f"Contributions, round {last.round} of {told.settings.rounds}",
        "told": told,
        "last": last,
        "rule": told.settings.rule.get("name", "of its own"),
        "answers": found,
        "idle": next(
            (each.diagnostics.idle for each in reversed(rounds) if each.diagnostics.idle is not None), None
        ),
        "soles": sum(len(answer.sole) for answer in found),
        "heaviest": max(told.weights.values()) or 1.0,
        "totals": {client: sum(row) for client, row in (told.evidence or {}).items()},
        "taking_part": counted_in((each.received, each.excluded) for each in rounds),
        "absent": Counter(client for each in rounds for client in each.absent),
        "left_out": left_out,
        "exclusions": excluded(rounds),
        "verdicts": verdicts(told),
        "unmerged": spans([each.round for each in rounds if each.merge]),
        "figures": figures(told),
        "frozen": frozen_after(rounds),
        "settings": flattened(told.tables),
    }
    return render("state.html", context)


def verdicts(told: ToldState) -> list[Exclusion]:
    """What the rule said of single clients, and in which rounds."""
    return gathered(
        [
            (client, reason, each.round)
            for each in told.rounds
            for verdict, reason in VERDICTS.items()
            for client in getattr(each.diagnostics, verdict) or []
        ]
    )


def figures(told: ToldState) -> dict[str, Markup | None]:
    made: dict[str, Markup | None] = dict.fromkeys(("evidence", "shares", "weights", "scores"))
    evidence, classes = told.evidence, told.classes
    if evidence and any(map(sum, evidence.values())):
        size = f"{counted(len(evidence), 'client')} by {counted(len(classes), 'class')}"
        made["evidence"] = inline_svg(
            evidence_figure(evidence, classes), "evidence", f"Heatmap of evidence, {size}."
        )
        made["shares"] = inline_svg(
            shares_figure(evidence, classes), "shares", f"Heatmap of each client's share of a class, {size}."
        )
    records = [each.model_dump(include={"round", "standing", "scores"}) for each in told.rounds]
    final = ", ".join(f"{shown(c, 24)} {percent(w)}" for c, w in list(told.weights.items())[:12])
    if len(records) > 1:
        made["weights"] = inline_svg(
            rounds_figure(records),
            "weights",
            f"Lines of weights over {counted(len(records), 'round')}, one a client. At the end: {final}.",
        )
    if sum(bool(record["scores"]) for record in records) > 1:
        made["scores"] = inline_svg(
            rounds_figure(records, "scores"),
            "scores",
            f"Lines of scores over {counted(len(records), 'round')}, one a client.",
        )
    return made


def flattened(tables: Mapping[str, Any]) -> dict[str, Any]:
    """Settings a line each, those of tables under `table.key`.

    >>> flattened({"rule": {"name": "celm", "warmup": 5}, "seed": 42})
    {'rule.name': 'celm', 'rule.warmup': 5, 'seed': 42}
    """
    flat: dict[str, Any] = {}
    for name, value in tables.items():
        flat |= (
            {f"{name}.{key}": each for key, each in value.items()}
            if isinstance(value, dict)
            else {name: value}
        )
    return flat
