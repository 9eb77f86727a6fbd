"""Compare estimators of contribution with the truth, which is known if every coalition was trained by itself.

    v(S) = utility of the model of the clients S after plain averaging among them alone       v(∅) = 0
    Shapley value  φ_i = Σ_{S ⊆ N \\ i}  |S|! (N - |S| - 1)! / N!  (v(S ∪ i) - v(S))
    leave-one-out  λ_i = v(N) - v(N \\ i)
    agreement of an estimator's final weights with φ, and with λ: Pearson and Spearman correlation, top-1 and
    bottom-1 hits (`celm.metrics.fairness`)

    gain of client i under a method = utility of the method's global model - v({i})

Utilities v are the study's metrics that are not costs, on the test set. Clients keep their data, their seeds and the
number of rounds in every coalition. v(∅) shifts all φ equally and changes no agreement. An estimator with equal weights
is uninformative: its correlations count as 0, its hits as the probability of a guess. If the truth itself is constant,
or the utility is undefined (rare classes), the row is excluded from the mean.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from celm.base.files import dump_json, write_text
from celm.metrics.fairness import bottom_hit, collaboration_gain, pearson, spearman, top_hit
from celm.records.run_files import RunFiles
from celm.records.run_records import RunResult
from celm.rules import rules
from celm.rules.coalitions import Game
from celm.rules.leave_one_out import leave_one_out_values
from celm.rules.shapley import shapley_values
from celm.study.plan import GridKey
from celm.study.results import RunOutcome
from celm.study.run_metrics import COST_METRICS
from celm.study.spec import StudySpec, natural_or_numbered, parse_method

_AgreementMeasure = Callable[[Mapping[str, float], Mapping[str, float]], float | None]

AGREEMENT_MEASURES: dict[str, _AgreementMeasure] = {
    "Pearson": pearson,
    "Spearman": spearman,
    "top-1": top_hit,
    "bottom-1": bottom_hit,
}
REFERENCES = ("shapley", "leave_one_out")


@dataclass(frozen=True)
class Truth:
    """The true contributions of the clients of one row and seed, by one utility."""

    row: str
    seed: int
    utility: str
    everyone: float
    """v(N)."""
    worth: Mapping[str, float]
    """Coalition, by the positions of its clients as in `0+2`, to v."""
    shapley: Mapping[str, float]
    leave_one_out: Mapping[str, float]


@dataclass(frozen=True)
class Agreement:
    """The agreement of an estimator's weights with a reference; None if the reference is constant."""

    row: str
    seed: int
    utility: str
    reference: str
    method: str
    values: Mapping[str, float | None]


def utility_metrics(study: StudySpec) -> list[str]:
    return [metric for metric in study.metrics if metric not in COST_METRICS]


def compute_truths(study: StudySpec, outcomes: Mapping[GridKey, RunOutcome]) -> list[Truth]:
    """Return the truth of each row and seed with results of all coalitions, by each utility that is defined."""
    truths = []
    for row, seed in dict.fromkeys((row, seed) for row, _, seed in outcomes):
        clients_and_results = coalition_results(study, outcomes, row, seed)
        if clients_and_results is None:
            continue
        clients, results = clients_and_results
        for utility in utility_metrics(study):
            worth = {coalition: getattr(result, utility) for coalition, result in results.items()}
            if None not in worth.values():
                truths.append(truth_from_worth(row, seed, utility, clients, worth))
    return truths


def coalition_results(
    study: StudySpec, outcomes: Mapping[GridKey, RunOutcome], row: str, seed: int
) -> tuple[list[str], dict[int, RunResult]] | None:
    """Return the clients of a row in order, and coalition to result; None if a result is missing.

    Bit i of a coalition is 1 if client i is a member.
    """
    finished = {
        outcome.spec.experiment.run.clients or (): outcome
        for (of_row, method, of_seed), outcome in outcomes.items()
        if (of_row, of_seed) == (row, seed) and method not in study.methods and outcome.result is not None
    }
    if not finished:
        return None
    experiment = next(iter(finished.values())).spec.experiment
    clients = natural_or_numbered(experiment.dataset.name, experiment.split.name, experiment.split.clients)
    if len(finished) < (1 << len(clients)) - 1:
        return None
    position = {name: i for i, name in enumerate(clients)}
    results = {
        sum(1 << position[name] for name in members): outcome.result
        for members, outcome in finished.items()
        if outcome.result is not None
    }
    return list(clients), results


def truth_from_worth(
    row: str, seed: int, utility: str, clients: Sequence[str], worth: Mapping[int, float]
) -> Truth:
    """Compute the truth from the worth of every coalition except the empty one."""
    game = Game(
        len(clients), lambda coalitions: [worth[coalition] if coalition else 0.0 for coalition in coalitions]
    )
    return Truth(
        row,
        seed,
        utility,
        everyone=worth[game.grand_coalition],
        worth={_format_members(coalition): value for coalition, value in sorted(worth.items())},
        shapley=dict(zip(clients, shapley_values(game), strict=True)),
        leave_one_out=dict(zip(clients, leave_one_out_values(game), strict=True)),
    )


def _format_members(coalition: int) -> str:
    """Return the positions of the members of a coalition.

    >>> _format_members(0b101)
    '0+2'
    """
    return "+".join(str(position) for position in range(coalition.bit_length()) if coalition >> position & 1)


def compute_agreements(study: StudySpec, outcomes: Mapping[GridKey, RunOutcome]) -> Iterator[Agreement]:
    """Yield the agreement of each estimator with each reference, for each known truth."""
    for truth in compute_truths(study, outcomes):
        for method in study.methods:
            outcome = outcomes.get((truth.row, method, truth.seed))
            if outcome is None or outcome.result is None:
                continue
            for reference in REFERENCES:
                values = measure_agreement(outcome.result.weights, getattr(truth, reference))
                yield Agreement(truth.row, truth.seed, truth.utility, reference, method, values)


def measure_agreement(
    weights: Mapping[str, float], reference: Mapping[str, float]
) -> dict[str, float | None]:
    """Return agreement measure to its value.

    >>> measure_agreement({"a": 0.5, "b": 0.5}, {"a": 2.0, "b": 1.0})
    {'Pearson': 0.0, 'Spearman': 0.0, 'top-1': 0.5, 'bottom-1': 0.5}
    """
    if is_constant(reference):
        return dict.fromkeys(AGREEMENT_MEASURES, None)
    return {name: measure(weights, reference) or 0.0 for name, measure in AGREEMENT_MEASURES.items()}


def is_constant(reference: Mapping[str, float]) -> bool:
    return top_hit(reference, reference) is None


def collaboration_gains(study: StudySpec, outcomes: Mapping[GridKey, RunOutcome]) -> Iterator[dict[str, Any]]:
    """Yield the gains of clients over training alone, for each method and each known truth."""
    for truth in compute_truths(study, outcomes):
        alone = {client: truth.worth[str(position)] for position, client in enumerate(truth.shapley)}
        for method in study.methods:
            outcome = outcomes.get((truth.row, method, truth.seed))
            if outcome is None or outcome.result is None:
                continue
            utility = getattr(outcome.result, truth.utility)
            if utility is not None and (gain := collaboration_gain(utility, alone)):
                key_fields = {
                    "row": truth.row,
                    "seed": truth.seed,
                    "utility": truth.utility,
                    "method": method,
                }
                yield {**key_fields, **asdict(gain)}


def save_truth(study: StudySpec, outcomes: Mapping[GridKey, RunOutcome], folder: Path) -> None:
    """Write truth.json: worth, true values, weights, agreements, gains, and estimators' requirements and costs."""
    finished = [(key, outcome) for key, outcome in outcomes.items() if outcome.result is not None]
    retraining = [
        o.result.seconds for (_, method, _), o in finished if method not in study.methods and o.result
    ]
    document = {
        "estimators": {
            method: {
                "needs": describe_requirements(study, method),
                "server_seconds_a_run": _mean_server_seconds(method, finished),
            }
            for method in study.methods
        },
        "retraining_seconds": sum(retraining),
        "truth": [asdict(truth) for truth in compute_truths(study, outcomes)],
        "weights": [
            {"row": row, "seed": seed, "method": method, "weights": outcome.result.weights}
            for (row, method, seed), outcome in finished
            if method in study.methods and outcome.result
        ],
        "agreement": [asdict(agreement) for agreement in compute_agreements(study, outcomes)],
        "gain": list(collaboration_gains(study, outcomes)),
    }
    write_text(folder / "truth.json", dump_json(document, indent=1) + "\n")


def describe_requirements(study: StudySpec, method: str) -> str:
    """Return, as text, what an estimator must receive."""
    declared_method = study.methods[method]
    name, _ = parse_method(declared_method.method or method)
    rule = rules.build(name, declared_method.settings.get("rule", {}))
    requirements = {
        "held-out data": rule.requirements.validation,
        "reported sizes": rule.requirements.sizes or getattr(rule, "by_size", False),
        rule.requirements.extra_exchange: bool(rule.requirements.extra_exchange),
    }
    return ", ".join(["client models", *(part for part, needed in requirements.items() if needed)])


def _mean_server_seconds(method: str, finished: Sequence[tuple[GridKey, RunOutcome]]) -> float | None:
    """Return the mean over runs of the total server time; None if a run has no time of some round."""
    totals = []
    for (_, of_method, _), outcome in finished:
        if of_method == method and outcome.result is not None:
            times = RunFiles(outcome.spec.folder).server_times()
            if len(times) < outcome.result.rounds:
                return None
            totals.append(sum(times.values()))
    return sum(totals) / len(totals) if totals else None
