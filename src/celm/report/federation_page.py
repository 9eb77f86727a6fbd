"""The report of a federation, from its verified record."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from markupsafe import Markup

from celm.records.metric_series import find_alarms
from celm.report.class_map import claims_map
from celm.report.client_flags import describe_clients, list_flags
from celm.report.client_summaries import (
    ClientSummary,
    describe_evidence,
    describe_test,
    summarise_clients,
)
from celm.report.contribution_table import (
    Column,
    NumberSource,
    agreement_columns,
    count_column,
    earned_column,
    holding_columns,
    percent_column,
    rank_column,
    score_sources,
)
from celm.report.many_clients import limit_rows, order_rows, outer_clients, percent_decimals
from celm.report.metric_charts import draw_metrics
from celm.report.rank_stability import RankStability, rank_stability
from celm.report.round_history import (
    ClientEvents,
    count_used_rounds,
    format_ranges,
    freeze_round,
    group_by_client,
    list_exclusions,
)
from celm.report.shared_figures import draw_distribution, draw_evidence, draw_rounds
from celm.report.templating import render_page
from celm.report.views import FederationView


def federation_page(view: FederationView) -> str:
    """Return the HTML page."""
    rounds, last_round = view.rounds, view.rounds[-1]
    rounds_excluded = Counter(client for record in rounds for client in record.excluded)
    rounds_used = count_used_rounds((record.received, record.excluded) for record in rounds)
    rounds_absent = Counter(client for record in rounds for client in record.absent)
    records = [record.model_dump(include={"round", "client_weights", "scores"}) for record in rounds]
    stability = rank_stability(records)
    claims = view.claims
    summaries = summarise_clients(
        view.weights,
        view.evidence,
        view.classes,
        claims,
        rounds_excluded,
        rounds_used,
        histories=stability.histories,
    )
    order = [summary.client for summary in summaries]
    flags = list_flags(rounds)
    flagged = {flag.client for flag in flags}
    evidence = order_rows(view.evidence or {}, order)
    columns = _contribution_columns(view, summaries, claims is not None, stability)
    columns += [
        count_column(
            "rounds",
            "the server",
            "replies that were used",
            {client: rounds_used[client] for client in order},
        ),
        _absence_column(
            "absent", "rounds in which the client was known but not connected", order, rounds_absent
        ),
        _absence_column(
            "excluded", "replies that did not arrive, or were not usable", order, rounds_excluded
        ),
    ]
    context = {
        "title": f"Contributions, round {last_round.round}"
        + (f" of {view.settings.rounds}" if view.settings.rounds else ""),
        "federation": view,
        "last_round": last_round,
        "rule": view.settings.rule.get("name", "a custom rule"),
        "order": order,
        "outer": outer_clients(view.weights),
        "weights": view.weights,
        "sentences": describe_clients(summaries, flags, last_round.earned, rounds_absent),
        "evidence_description": describe_evidence(view.settings.rule),
        "test_description": describe_test(claims),
        "claims": claims,
        "class_map": claims_map(claims, view.classes, order),
        "stability": stability,
        "columns": columns,
        "number_rows": _other_numbers(view),
        "evidence": limit_rows(evidence, len(view.classes)),
        "num_probed": len(evidence),
        "rounds_excluded": rounds_excluded,
        "absences": group_by_client(
            [(client, "not connected", record.round) for record in rounds for client in record.absent]
        ),
        "exclusions": list_exclusions(rounds),
        "flags": flags,
        "num_flagged": len(flagged),
        "rejected_merges": _list_rejected_merges(view),
        "figures": _draw_figures(view, records, evidence, flagged),
        "alarms": find_alarms(view.metrics, view.settings.classes),
        "metrics": draw_metrics(view.metrics),
        "metric_exclusions": _list_metric_exclusions(view),
        "frozen_from": freeze_round(rounds),
        "amendments": [(record.round, amendment) for record in rounds for amendment in record.amendments],
        "settings": _flatten_tables(view.raw_settings),
    }
    return render_page("federation.html", context)


def _contribution_columns(
    view: FederationView, summaries: Sequence[ClientSummary], has_claims: bool, stability: RankStability
) -> list[Column]:
    """Return the columns with weights, classes, ranks and earnings."""
    decimals = percent_decimals(len(view.weights))
    rule = view.settings.rule.get("name", "a custom rule")
    source = (
        "the scores of the rounds with a probe, smoothed over the rounds"
        if rule == "celm"
        else "the updates, as this rule prescribes"
    )
    columns = [
        percent_column(
            "weight", f"the server, rule {rule}", source, dict(view.weights), decimals, has_meter=True
        ),
        *holding_columns(summaries, view.classes, view.evidence, "the server", has_claims),
    ]
    if stability.histories:
        columns.append(rank_column(stability))
    if earned := view.rounds[-1].earned:
        columns.append(earned_column(earned, decimals))
    columns += agreement_columns(
        [(record.scores, record.diagnostics.agreement_scores) for record in view.rounds], decimals
    )
    return columns


def _other_numbers(view: FederationView) -> list[NumberSource]:
    """Return the sources of the numbers that have no column."""
    rows = score_sources("the server") if view.last_probed else []
    rows.append(("flags", "the server", "the update, compared with the model sent and with other updates"))
    if view.metrics:
        rows += [
            ("metrics of clients", "the clients", "their own data; the server cannot check them"),
            ("metrics of the server", "the operator's code", "the global model and the server's test data"),
        ]
    return rows


def _absence_column(heading: str, source: str, clients: Sequence[str], counts: Mapping[str, int]) -> Column:
    return count_column(
        heading, "the server", source, {client: counts.get(client, 0) for client in clients}, True
    )


def _list_rejected_merges(view: FederationView) -> dict[str, str]:
    """Return reason to the rounds whose aggregated model was rejected for it."""
    numbers: dict[str, list[int]] = {}
    for record in view.rounds:
        if record.merge:
            numbers.setdefault(record.merge, []).append(record.round)
    return {reason: format_ranges(rounds) for reason, rounds in numbers.items()}


def _list_metric_exclusions(view: FederationView) -> list[ClientEvents]:
    """Return the clients that do not count, or not in full, in the means of metrics."""
    return group_by_client(
        [
            (client, f"{phase}: {reason}", line.round)
            for phase, lines, reasons in (
                ("evaluation", view.evaluations, lambda line: {**line.excluded, **line.capped}),
                ("training", view.rounds, lambda line: line.metrics_excluded),
            )
            for line in lines
            for client, reason in reasons(line).items()
        ]
    )


def _draw_figures(
    view: FederationView,
    records: Sequence[Mapping[str, Any]],
    evidence: Mapping[str, Sequence[float]],
    flagged: Collection[str],
) -> dict[str, Markup | None]:
    return draw_evidence(evidence, view.classes) | {
        "distribution": draw_distribution(view.weights, flagged),
        "weights": draw_rounds(records, "client_weights", view.weights),
        "scores": draw_rounds(records, "scores"),
    }


def _flatten_tables(tables: Mapping[str, Any]) -> dict[str, Any]:
    """Return settings by their full names.

    >>> _flatten_tables({"rule": {"name": "celm", "warmup": 5}, "seed": 42})
    {'rule.name': 'celm', 'rule.warmup': 5, 'seed': 42}
    """
    flat: dict[str, Any] = {}
    for name, value in tables.items():
        flat |= (
            {f"{name}.{key}": item for key, item in value.items()}
            if isinstance(value, dict)
            else {name: value}
        )
    return flat
