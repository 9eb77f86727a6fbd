"""The report of a run."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from markupsafe import Markup

from celm.experiment.config import Experiment
from celm.experiment.differences import run_title_parts
from celm.metrics.fidelity import fidelity, fidelity_to_uniform
from celm.records.federation_records import Diagnostics
from celm.report.bar_figures import per_class_figure
from celm.report.class_map import claims_map
from celm.report.client_flags import describe_clients, list_flags
from celm.report.client_summaries import (
    ClientSummary,
    describe_evidence,
    describe_test,
    join_class_names,
    summarise_clients,
)
from celm.report.contribution_table import (
    Column,
    agreement_columns,
    count_column,
    earned_column,
    holding_columns,
    percent_column,
    rank_column,
    score_sources,
)
from celm.report.formatting import format_percent, join_percents, pluralise
from celm.report.line_figures import accuracy_figure
from celm.report.many_clients import limit_rows, order_rows, outer_clients, percent_decimals
from celm.report.plain_names import plain_label, plain_name
from celm.report.rank_stability import RankStability, rank_stability
from celm.report.round_history import count_used_rounds, freeze_round, list_exclusions
from celm.report.shared_figures import draw_distribution, draw_evidence, draw_rounds
from celm.report.svg import inline_svg
from celm.report.templating import render_page
from celm.report.truth_figures import draw_probes, draw_truth
from celm.report.views import RunView

_MAX_LABEL_CLASSES = 20
"""Classes in the text alternative of a figure."""


def run_page(view: RunView, probe_images: bool = False) -> str:
    """Return the HTML page. `probe_images` adds the inputs at the end of the probes."""
    result, records, claims = view.result, view.records, view.claims
    stability = rank_stability(records)
    summaries = summarise_clients(
        result.weights,
        view.evidence,
        result.classes,
        claims,
        Counter(client for record in view.rounds for client in record.excluded),
        count_used_rounds((record.clients, record.excluded) for record in view.rounds),
        own_accuracy=result.client_accuracy if result.personal else None,
        histories=stability.histories,
    )
    order = [summary.client for summary in summaries]
    flags = list_flags(view.rounds)
    flagged = {flag.client for flag in flags}
    evidence, counts = order_rows(view.evidence or {}, order), order_rows(result.counts, order)
    probes = draw_probes(view, order) if probe_images else None
    context = {
        "title": ", ".join([*_title_parts(view.experiment), view.experiment.method]),
        "run": view,
        "result": result,
        "method": view.experiment.method,
        "order": order,
        "outer": outer_clients(result.weights),
        "weights": result.weights,
        "sentences": describe_clients(summaries, flags),
        "flags": flags,
        "evidence_description": describe_evidence(view.evidence_settings),
        "test_description": describe_test(claims),
        "class_map": claims_map(claims, result.classes, order),
        "stability": stability,
        "number_rows": [
            *(score_sources(_measured_by(view)) if view.evidence else []),
            ("accuracy", "celm", "the model and the test data, which only a simulation has"),
        ],
        "columns": _contribution_columns(view, summaries, claims is not None, stability),
        "all_probed": view.evidence is None or set(result.weights) <= set(view.evidence),
        "evidence": limit_rows(evidence, len(result.classes)),
        "num_probed": len(evidence),
        "counts": limit_rows(counts, len(result.classes)),
        "exclusions": list_exclusions(view.rounds),
        "figures": _draw_figures(view, records, evidence)
        | draw_truth(evidence, counts, result.classes)
        | {"distribution": draw_distribution(result.weights, flagged), "probes": probes},
        "fidelity": _describe_fidelity(view),
        "shows_probes": probe_images,
        "frozen_from": freeze_round(view.rounds),
        "weakest_class": _weakest_class(view),
        "rare_classes": join_class_names([result.classes[k] for k in result.rare_classes])
        if result.rare_classes
        else None,
        "settings": view.experiment.to_toml(),
        "environment": view.environments[-1] if view.environments else None,
    }
    return render_page("run.html", context, images=probes is not None)


def _contribution_columns(
    view: RunView, summaries: Sequence[ClientSummary], has_claims: bool, stability: RankStability
) -> list[Column]:
    result = view.result
    decimals = percent_decimals(len(result.weights))
    source = (
        "the scores of the rounds with a probe, smoothed over the rounds"
        if result.rule == "celm"
        else "the updates, as this rule prescribes"
    )
    rounds_used = count_used_rounds((record.clients, record.excluded) for record in view.rounds)
    clients = [summary.client for summary in summaries]
    columns = [
        percent_column(
            "weight",
            f"the server, rule {result.rule}",
            source,
            dict(result.weights),
            decimals,
            has_meter=True,
        ),
        *holding_columns(summaries, result.classes, view.evidence, _measured_by(view), has_claims),
    ]
    if stability.histories:
        columns.append(rank_column(stability))
    if view.experiment.rule.has_other_scores:
        columns.append(earned_column(view.rounds[-1].earned, decimals))
    diagnostics = [Diagnostics.model_validate(record.diagnostics) for record in view.rounds]
    columns += agreement_columns(
        [(r.scores, d.agreement_scores) for r, d in zip(view.rounds, diagnostics, strict=True)], decimals
    )
    columns.append(
        count_column(
            "rounds",
            "the server",
            "rounds in which the client's update was used",
            {client: rounds_used[client] for client in clients},
        )
    )
    if any(summary.rounds_excluded for summary in summaries):
        counts = {summary.client: summary.rounds_excluded for summary in summaries}
        source = "updates that were unusable, or that the filter rejected"
        columns.append(count_column("excluded", "the server", source, counts, dash_for_zero=True))
    source = "the same models; an observer does not change the run"
    return columns + [
        percent_column(f"by {observer}", f"the observer {observer}", source, dict(weights or {}), decimals)
        for observer, weights in result.observed.items()
    ]


def _measured_by(view: RunView) -> str:
    return f"the observer {view.evidence_rule}" if view.evidence_rule else "the server"


def _draw_figures(
    view: RunView, records: Sequence[dict[str, Any]], evidence: Mapping[str, Sequence[float]]
) -> dict[str, Markup | None]:
    """Draw the figures of the page; None for those for which the run has no data."""
    result = view.result
    accuracies = zip(result.classes, result.per_class, strict=True)
    return draw_evidence(evidence, result.classes) | {
        "weights": draw_rounds(records, "client_weights", result.weights),
        "scores": draw_rounds(records, "scores"),
        "accuracy": _draw_accuracy(view, records),
        "per_class": inline_svg(
            per_class_figure({view.experiment.method: result.per_class}, result.classes, result.rare_classes),
            "per_class",
            f"Accuracy on each class: {join_percents(accuracies, _MAX_LABEL_CLASSES)}.",
        ),
    }


def _draw_accuracy(view: RunView, records: Sequence[dict[str, Any]]) -> Markup | None:
    if all(record["accuracy"] is None for record in records):
        return None
    seed = view.result.seed
    curves = {"all classes": {seed: records}}
    if view.result.rare_class_accuracy is not None:
        rare = [{"round": r["round"], "accuracy": r["rare_class_accuracy"]} for r in records]
        curves["rare classes"] = {seed: rare}
    return inline_svg(
        accuracy_figure(curves),
        "accuracy",
        f"Accuracy over {pluralise(len(records), 'round')}, {format_percent(view.result.accuracy)} at the end.",
    )


def _describe_fidelity(view: RunView) -> str | None:
    """Say how far the evidence is from the truth; None if one of them is empty."""
    counts = {client: [float(count) for count in row] for client, row in view.result.counts.items()}
    evidence = view.evidence or {}
    if not evidence or not set(evidence) <= set(counts):
        return None
    estimated, uniform = fidelity(counts, evidence), fidelity_to_uniform(counts)
    if estimated is None or uniform is None:
        return None
    return (
        "Jensen-Shannon distance of the estimated from the true distribution over clients and classes: "
        f"{estimated.jensen_shannon:.3f}; of a uniform guess: {uniform.jensen_shannon:.3f}. 0 means equal."
    )


def _weakest_class(view: RunView) -> tuple[str, float] | None:
    """Return the class with the lowest accuracy and that accuracy; None if several classes share it."""
    tested = [(a, k) for k, a in enumerate(view.result.per_class) if a is not None]
    if len(tested) < 2:
        return None
    lowest, k = min(tested)
    is_unique = sum(accuracy == lowest for accuracy, _ in tested) == 1
    return (view.result.classes[k], lowest) if is_unique else None


def _title_parts(experiment: Experiment) -> list[str]:
    """Return the words of the title; names of datasets and splits are in plain words."""
    dataset, *others = run_title_parts(experiment)
    name, _, alpha = others[0].partition(" ") if others else ("", "", "")
    split = plain_label(f"{name}_{alpha}") if alpha else plain_name(name)
    return [plain_name(dataset), split, *others[1:]]
