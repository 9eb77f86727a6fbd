"""Build the table of a study, of a comparison, or of a study with ground truth, from the outcomes of its runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

from celm.metrics.fairness import CollaborationGain, collaboration_gain
from celm.metrics.fidelity import fidelity
from celm.records.run_records import RunResult
from celm.study.ground_truth import (
    AGREEMENT_MEASURES,
    REFERENCES,
    coalition_results,
    collaboration_gains,
    compute_agreements,
    compute_truths,
    is_constant,
    utility_metrics,
)
from celm.study.paper_results import find_paper_statistic, paper_value
from celm.study.plan import GridKey
from celm.study.results import MetricsByRun, RunOutcome
from celm.study.run_metrics import ACCURACY_METRICS, LOWER_IS_BETTER, UNRANKED_METRICS, WALL_CLOCK_METRICS
from celm.study.scales import Scale, rows_for_scale, seeds_for_scale
from celm.study.spec import StudySpec
from celm.study.table import ResultTable, Statistic

MIN_RANKED_SEEDS = 3
"""Fewest seeds with which a comparison marks the best method."""
MAX_WEIGHT_COLUMNS = 20
"""Most clients whose weights are columns of a table."""
FIDELITY_COLUMNS = {"Jensen-Shannon distance": "jensen_shannon", "Hellinger distance": "hellinger"}
"""Column to the field of `Fidelity`."""
_GAIN, _SPREAD = "mean gain", "spread of gains"
"""What clients gain over training alone; see `celm.metrics.fairness`."""


def build_study_table(
    study: StudySpec,
    outcomes: Mapping[GridKey, RunOutcome],
    metrics_by_run: MetricsByRun,
    scale: Scale,
    wall_clock: bool = False,
) -> ResultTable:
    """Return rows by methods and metrics, with the paper's values at the paper's scale.

    Wall-clock metrics have their own table (`wall_clock`), because all others repeat byte for byte.
    """
    if study.ground_truth and not wall_clock:
        return build_truth_table(study, outcomes, scale)
    ours: dict[tuple[str, str], Statistic] = {}
    paper: dict[tuple[str, str], Statistic] = {}
    rows: list[str] = []
    columns: list[str] = []
    num_seeds = len(seeds_for_scale(study.seeds, scale))
    for row, metric in study.rows_and_metrics:
        if (metric in WALL_CLOCK_METRICS) != wall_clock:
            continue
        label = study.table_label(row, metric)
        for method in study.methods:
            run_metrics = [
                metrics for key, metrics in metrics_by_run.items() if key[:2] == (row.label, method)
            ]
            values = [value for metrics in run_metrics if (value := metrics[metric]) is not None]
            column = metric if study.has_one_method else method
            if any(key[:2] == (row.label, method) for key in outcomes):
                rows = [*rows, label] if label not in rows else rows
                columns = [*columns, column] if column not in columns else columns
            if values:
                ours[label, column] = Statistic.from_values(
                    values,
                    percent=metric in ACCURACY_METRICS,
                    lower_is_better=metric in LOWER_IS_BETTER,
                    ranked=metric not in UNRANKED_METRICS,
                    expected_count=num_seeds,
                )
            dataset = row.settings["dataset"]["name"]
            statistic = paper_value(study.paper or "", dataset, row.split_label, method, metric)
            if statistic is not None and scale is Scale.paper:
                paper[label, column] = statistic
    # With one method the columns are metrics and the rows are splits, which do not compete.
    compare: Literal["none", "columns"] = "none" if study.has_one_method else "columns"
    metric_note = f": {study.single_metric.replace('_', ' ')}" if study.single_metric else ""
    title = study.title + metric_note + (", by a clock" if wall_clock else "") + scale.note
    return ResultTable(title, rows, columns, ours, paper, compare)


def build_compare_table(outcomes: Mapping[tuple[str, int], RunOutcome], title: str) -> ResultTable:
    """Return methods by metrics, without metrics that the split does not have.

    If one of the methods is `standalone`, also return what clients gain over it.
    """
    methods = list(dict.fromkeys(method for method, _ in outcomes))
    num_seeds = len({seed for _, seed in outcomes})
    ours: dict[tuple[str, str], Statistic] = {}
    paper: dict[tuple[str, str], Statistic] = {}
    for method in methods:
        method_outcomes = [o for (name, _), o in outcomes.items() if name == method]
        for metric in ACCURACY_METRICS:
            results = [o.result for o in method_outcomes if o.result]
            values = [value for result in results if (value := getattr(result, metric)) is not None]
            if values:
                ours[method, metric] = Statistic.from_values(values, expected_count=num_seeds)
            if (statistic := find_paper_statistic(method_outcomes[0].spec.experiment, metric)) is not None:
                paper[method, metric] = statistic
    for method, gains in _gains_over_standalone(outcomes).items():
        for column, values in _gain_values(gains).items():
            lower_is_better = column == _SPREAD
            ours[method, column] = Statistic.from_values(
                values, lower_is_better=lower_is_better, expected_count=num_seeds
            )
    columns = [name for name in (*ACCURACY_METRICS, _GAIN, _SPREAD) if any(name == key for _, key in ours)]
    return ResultTable(title, methods, columns, ours, paper, min_ranked_count=MIN_RANKED_SEEDS)


def build_contribution_table(outcomes: Mapping[GridKey, RunOutcome], title: str) -> ResultTable:
    """Return methods, at each grid point, by the final weight of each client and the distance from the true data.

    The distances compare the last evidence with the true class distribution, for methods that have evidence. With many
    clients, the table has the distances alone.
    """
    results: dict[str, list[RunResult]] = {}
    clients: dict[str, None] = {}
    for (point, method, _), outcome in outcomes.items():
        if outcome.result is not None:
            results.setdefault(", ".join(filter(None, (point, method))), []).append(outcome.result)
            clients |= dict.fromkeys(outcome.result.weights)
    shown = list(clients) if len(clients) <= MAX_WEIGHT_COLUMNS else []
    num_seeds = len({seed for _, _, seed in outcomes})
    ours: dict[tuple[str, str], Statistic] = {}
    for row, runs in results.items():
        for client in shown:
            if weights := [run.weights[client] for run in runs if client in run.weights]:
                ours[row, client] = Statistic.from_values(weights, ranked=False, expected_count=num_seeds)
        distances = [fidelity(run.counts, run.evidence) for run in runs if run.evidence]
        for column, field in FIDELITY_COLUMNS.items():
            if values := [value for distance in distances if (value := getattr(distance, field)) is not None]:
                ours[row, column] = Statistic.from_values(
                    values, percent=False, lower_is_better=True, expected_count=num_seeds
                )
    columns = [name for name in (*shown, *FIDELITY_COLUMNS) if any(name == key for _, key in ours)]
    compare: Literal["rows", "none"] = "none" if any(point for point, _, _ in outcomes) else "rows"
    return ResultTable(
        f"{title}: weights of clients (%)",
        list(results),
        columns,
        ours,
        {},
        compare,
        min_ranked_count=MIN_RANKED_SEEDS,
    )


def build_grid_table(outcomes: Mapping[GridKey, RunOutcome], title: str) -> ResultTable:
    """Return grid points and metrics by methods; the methods of a line compete."""
    num_seeds = len({seed for _, _, seed in outcomes})
    methods = list(dict.fromkeys(method for _, method, _ in outcomes))
    ours: dict[tuple[str, str], Statistic] = {}
    rows: list[str] = []
    for point in dict.fromkeys(point for point, _, _ in outcomes):
        for metric in ACCURACY_METRICS:
            label = f"{point} {metric.replace('_', ' ')}"
            for method in methods:
                results = [o.result for key, o in outcomes.items() if key[:2] == (point, method) and o.result]
                values = [value for result in results if (value := getattr(result, metric)) is not None]
                if values:
                    ours[label, method] = Statistic.from_values(values, expected_count=num_seeds)
                    rows = rows if label in rows else [*rows, label]
    return ResultTable(title, rows, methods, ours, {}, "columns", min_ranked_count=MIN_RANKED_SEEDS)


def _gains_over_standalone(
    outcomes: Mapping[tuple[str, int], RunOutcome],
) -> dict[str, list[CollaborationGain]]:
    """Return method to its gains, one for each seed with a standalone run; empty if no method is standalone."""
    alone = {
        seed: outcome.result.client_accuracy
        for (_, seed), outcome in outcomes.items()
        if outcome.spec.experiment.rule.name == "standalone" and outcome.result is not None
    }
    gains: dict[str, list[CollaborationGain]] = {}
    for (method, seed), outcome in outcomes.items():
        is_standalone = outcome.spec.experiment.rule.name == "standalone"
        accuracies, result = alone.get(seed), outcome.result
        if is_standalone or result is None or not accuracies:
            continue
        gain = collaboration_gain(result.client_accuracy or result.accuracy, accuracies)
        if gain is not None:
            gains.setdefault(method, []).append(gain)
    return gains


def _gain_values(gains: Sequence[CollaborationGain]) -> dict[str, list[float]]:
    return {_GAIN: [gain.mean for gain in gains], _SPREAD: [gain.spread for gain in gains]}


def build_truth_table(study: StudySpec, outcomes: Mapping[GridKey, RunOutcome], scale: Scale) -> ResultTable:
    """Return references, utilities and agreement measures by estimators, over all federations (rows and seeds).

    Below them is what clients gain by each utility over training alone, if the estimator's weights aggregate.

    A statistic is marked as incomplete if runs of the estimator or of coalitions are missing.
    """
    agreement_values: dict[tuple[str, str], list[float]] = {}
    for agreement in compute_agreements(study, outcomes):
        for name, value in agreement.values.items():
            if value is not None:
                row = f"{agreement.reference} of {agreement.utility}: {name}"
                agreement_values.setdefault((row, agreement.method), []).append(value)
    expected = {
        f"{reference} of {utility}: {name}": count
        for (reference, utility), count in _expected_counts(study, outcomes, scale).items()
        for name in AGREEMENT_MEASURES
    }
    ours = {
        (row, method): Statistic.from_values(values, percent=False, expected_count=expected[row])
        for (row, method), values in agreement_values.items()
    }
    gains: dict[tuple[str, str], list[CollaborationGain]] = {}
    for fields in collaboration_gains(study, outcomes):
        gain = CollaborationGain(fields["mean"], fields["spread"], fields["by_client"])
        gains.setdefault((fields["utility"], fields["method"]), []).append(gain)
    federations = _count_federations(study, outcomes, scale)
    for utility in utility_metrics(study):
        expected |= dict.fromkeys((f"{utility}: {_GAIN}", f"{utility}: {_SPREAD}"), federations[utility])
    for (utility, method), found in gains.items():
        for column, values in _gain_values(found).items():
            ours[f"{utility}: {column}", method] = Statistic.from_values(
                values, lower_is_better=column == _SPREAD, expected_count=federations[utility]
            )
    filled_rows = [row for row in expected if any(row == key for key, _ in ours)]
    methods = [method for method in study.methods if any(method == key for _, key, _ in outcomes)]
    return ResultTable(study.title + scale.note, filled_rows, methods, ours, {}, "columns", "federations")


def _expected_counts(
    study: StudySpec, outcomes: Mapping[GridKey, RunOutcome], scale: Scale
) -> dict[tuple[str, str], int]:
    """Return (reference, utility) to the number of federations, except those with a constant reference."""
    federations = [
        (row.label, seed)
        for row in rows_for_scale(study, scale)
        for seed in seeds_for_scale(study.seeds, scale)
    ]
    complete = {federation for federation in federations if coalition_results(study, outcomes, *federation)}
    informative: dict[tuple[str, str], set[tuple[str, int]]] = {}
    for truth in compute_truths(study, outcomes):
        for reference in REFERENCES:
            if not is_constant(getattr(truth, reference)):
                informative.setdefault((reference, truth.utility), set()).add((truth.row, truth.seed))
    return {
        (reference, utility): len(federations) - len(complete - informative.get((reference, utility), set()))
        for reference in REFERENCES
        for utility in utility_metrics(study)
    }


def _count_federations(
    study: StudySpec, outcomes: Mapping[GridKey, RunOutcome], scale: Scale
) -> dict[str, int]:
    """Return utility to the number of federations, except those where it is known to be undefined."""
    federations = [
        (row.label, seed)
        for row in rows_for_scale(study, scale)
        for seed in seeds_for_scale(study.seeds, scale)
    ]
    complete = {federation for federation in federations if coalition_results(study, outcomes, *federation)}
    defined: dict[str, set[tuple[str, int]]] = {}
    for truth in compute_truths(study, outcomes):
        defined.setdefault(truth.utility, set()).add((truth.row, truth.seed))
    return {
        utility: len(federations) - len(complete - defined.get(utility, set()))
        for utility in utility_metrics(study)
    }
