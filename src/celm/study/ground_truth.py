"""Estimators of contribution against the truth, which is known where every coalition was trained by itself.

    v(S) = what the model of the clients S is worth after plain averaging among them alone       v(∅) = 0
    Shapley value  φ_i = Σ_{S ⊆ N \\ i}  |S|! (N - |S| - 1)! / N!  (v(S ∪ i) - v(S))
    leave-one-out  λ_i = v(N) - v(N \\ i)
    agreement of an estimator's final weights with φ, and with λ: Pearson and Spearman correlation, top-1 and
    bottom-1 hits (`celm.metrics.fairness`)

    gain of client i under a method = worth of the method's global model - v({i})

Utilities v are the study's metrics that are no costs, on the test set. Clients keep their data, their seeds and the
number of rounds in every coalition. v(∅) shifts all φ alike and changes no agreement. An estimator whose weights are
all the same says nothing: its correlations count as 0, its hits as what guessing gives. Where the truth itself is
constant, or the utility is not defined (rare classes), there is nothing to agree with and the row is left out of the
mean.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from celm.base.files import dump_json, write_text
from celm.federation.folder import Folder
from celm.metrics.fairness import bottom_hit, collaboration_gain, pearson, spearman, top_hit
from celm.rules import rules
from celm.rules.coalitions import Game
from celm.rules.leave_one_out import leave_one_out
from celm.rules.shapley import shapley
from celm.study.compare import parse_method
from celm.study.declaration import Study
from celm.study.grid import Key, Outcome
from celm.study.measures import COSTS
from celm.study.scales import Scale, rows_at, seeds_at
from celm.study.table import Figure, Table

Measure = Callable[[Mapping[str, float], Mapping[str, float]], float | None]

AGREEMENT: dict[str, Measure] = {
    "Pearson": pearson,
    "Spearman": spearman,
    "top-1": top_hit,
    "bottom-1": bottom_hit,
}
REFERENCES = ("shapley", "leave_one_out")


@dataclass(frozen=True)
class Truth:
    """What the clients of one row and seed are worth by one utility."""

    row: str
    seed: int
    utility: str
    everyone: float
    """v(N)."""
    worth: Mapping[str, float]
    """v of every coalition but the empty one; its clients by their places, as in `0+2`."""
    shapley: Mapping[str, float]
    leave_one_out: Mapping[str, float]


@dataclass(frozen=True)
class Agreement:
    """How an estimator's weights agree with a reference; None where that is constant."""

    row: str
    seed: int
    utility: str
    reference: str
    method: str
    values: Mapping[str, float | None]


def utilities(study: Study) -> list[str]:
    return [metric for metric in study.metrics if metric not in COSTS]


def truths(study: Study, outcomes: Mapping[Key, Outcome]) -> list[Truth]:
    """Of every row and seed whose coalitions are all there, by every utility that it has."""
    found = []
    for row, seed in dict.fromkeys((row, seed) for row, _, seed in outcomes):
        worth = coalitions_of(study, outcomes, row, seed)
        if worth is None:
            continue
        clients, results = worth
        for utility in utilities(study):
            values = {coalition: result[utility] for coalition, result in results.items()}
            if None not in values.values():
                found.append(truth_of(row, seed, utility, clients, values))
    return found


def coalitions_of(
    study: Study, outcomes: Mapping[Key, Outcome], row: str, seed: int
) -> tuple[list[str], dict[int, dict[str, Any]]] | None:
    """The clients of a row in order, and the result of each of their coalitions; None where one is missing.

    Bit i of a coalition says whether client i is in it.
    """
    found = {
        outcome.cell.experiment.run.clients: outcome.result
        for (of_row, method, of_seed), outcome in outcomes.items()
        if (of_row, of_seed) == (row, seed) and method not in study.methods
    }
    everyone = max((members for members in found if members), key=len, default=())
    place = {name: i for i, name in enumerate(everyone)}
    results = {
        sum(1 << place[name] for name in members): result
        for members, result in found.items()
        if members and result is not None
    }
    complete = everyone and len(results) == (1 << len(everyone)) - 1
    return (list(everyone), results) if complete else None


def truth_of(row: str, seed: int, utility: str, clients: Sequence[str], worth: Mapping[int, float]) -> Truth:
    """From the worth of every coalition but the empty one."""
    game = Game(len(clients), lambda asked: [worth[coalition] if coalition else 0.0 for coalition in asked])
    return Truth(
        row,
        seed,
        utility,
        everyone=worth[game.everyone],
        worth={members(coalition): value for coalition, value in sorted(worth.items())},
        shapley=dict(zip(clients, shapley(game), strict=True)),
        leave_one_out=dict(zip(clients, leave_one_out(game), strict=True)),
    )


def members(coalition: int) -> str:
    """
    >>> members(0b101)
    '0+2'
    """
    return "+".join(str(place) for place in range(coalition.bit_length()) if coalition >> place & 1)


def agreements(study: Study, outcomes: Mapping[Key, Outcome]) -> Iterator[Agreement]:
    """Of every estimator with both references, for every truth that is known."""
    for truth in truths(study, outcomes):
        for method in study.methods:
            outcome = outcomes.get((truth.row, method, truth.seed))
            if outcome is None or outcome.result is None:
                continue
            for reference in REFERENCES:
                values = agreement(outcome.result["weights"], getattr(truth, reference))
                yield Agreement(truth.row, truth.seed, truth.utility, reference, method, values)


def agreement(weights: Mapping[str, float], reference: Mapping[str, float]) -> dict[str, float | None]:
    """By every measure.

    >>> agreement({"a": 0.5, "b": 0.5}, {"a": 2.0, "b": 1.0})
    {'Pearson': 0.0, 'Spearman': 0.0, 'top-1': 0.5, 'bottom-1': 0.5}
    """
    if constant(reference):
        return dict.fromkeys(AGREEMENT, None)
    return {name: measure(weights, reference) or 0.0 for name, measure in AGREEMENT.items()}


def gains(study: Study, outcomes: Mapping[Key, Outcome]) -> Iterator[dict[str, Any]]:
    """What clients get out of each method beyond training alone, for every truth that is known."""
    for truth in truths(study, outcomes):
        alone = {client: truth.worth[str(place)] for place, client in enumerate(truth.shapley)}
        for method in study.methods:
            outcome = outcomes.get((truth.row, method, truth.seed))
            if outcome is None or outcome.result is None or outcome.result.get(truth.utility) is None:
                continue
            if gain := collaboration_gain(outcome.result[truth.utility], alone):
                about = {"row": truth.row, "seed": truth.seed, "utility": truth.utility, "method": method}
                yield {**about, **asdict(gain)}


def truth_table(study: Study, outcomes: Mapping[Key, Outcome], scale: Scale) -> Table:
    """References, utilities and measures by estimators, over all federations (rows and seeds).

    A figure is marked where runs are missing that could be judged by, of the estimator or of coalitions.
    """
    gathered: dict[tuple[str, str], list[float]] = {}
    for found in agreements(study, outcomes):
        for name, value in found.values.items():
            if value is not None:
                row = f"{found.reference} of {found.utility}: {name}"
                gathered.setdefault((row, found.method), []).append(value)
    meant = {
        f"{reference} of {utility}: {name}": count
        for (reference, utility), count in judges(study, outcomes, scale).items()
        for name in AGREEMENT
    }
    ours = {
        (row, method): Figure.of(values, percent=False, meant=meant[row])
        for (row, method), values in gathered.items()
    }
    shown = [row for row in meant if any(row == key for key, _ in ours)]
    methods = [method for method in study.methods if any(method == key for _, key, _ in outcomes)]
    return Table(study.title + scale.note, shown, methods, ours, {}, "columns", "federations")


def judges(study: Study, outcomes: Mapping[Key, Outcome], scale: Scale) -> dict[tuple[str, str], int]:
    """Reference and utility to how many federations there are to judge by, but for those known to say nothing."""
    places = [(row.label, seed) for row in rows_at(study, scale) for seed in seeds_at(study.seeds, scale)]
    known = {place for place in places if coalitions_of(study, outcomes, *place)}
    telling: dict[tuple[str, str], set[tuple[str, int]]] = {}
    for truth in truths(study, outcomes):
        for reference in REFERENCES:
            if not constant(getattr(truth, reference)):
                telling.setdefault((reference, truth.utility), set()).add((truth.row, truth.seed))
    return {
        (reference, utility): len(places) - len(known - telling.get((reference, utility), set()))
        for reference in REFERENCES
        for utility in utilities(study)
    }


def constant(reference: Mapping[str, float]) -> bool:
    return top_hit(reference, reference) is None


def save_truth(study: Study, outcomes: Mapping[Key, Outcome], folder: Path) -> None:
    """`truth.json`: worth, true values, weights, agreements and gains, what each estimator needs, what it cost."""
    done = [(key, outcome) for key, outcome in outcomes.items() if outcome.result is not None]
    retraining = [
        o.result["seconds"] for (_, method, _), o in done if method not in study.methods and o.result
    ]
    about = {
        "estimators": {
            method: {"needs": needs(study, method), "server_seconds_a_run": seconds_a_run(method, done)}
            for method in study.methods
        },
        "retraining_seconds": sum(retraining),
        "truth": [asdict(truth) for truth in truths(study, outcomes)],
        "weights": [
            {"row": row, "seed": seed, "method": method, "weights": outcome.result["weights"]}
            for (row, method, seed), outcome in done
            if method in study.methods and outcome.result
        ],
        "agreement": [asdict(found) for found in agreements(study, outcomes)],
        "gain": list(gains(study, outcomes)),
    }
    write_text(folder / "truth.json", dump_json(about, indent=1) + "\n")


def needs(study: Study, method: str) -> str:
    """What an estimator must be given, in words."""
    own = study.methods[method]
    name, _ = parse_method(own.method or method)
    rule = rules.build(name, own.settings.get("rule", {}))
    parts = {
        "held-out data": rule.needs.validation,
        "reported sizes": rule.needs.sizes or getattr(rule, "by_size", False),
        rule.needs.extras: bool(rule.needs.extras),
    }
    return ", ".join(["client models", *(part for part, needed in parts.items() if needed)])


def seconds_a_run(method: str, done: Sequence[tuple[Key, Outcome]]) -> float | None:
    """Mean over runs of all the seconds that the server took; None where a run did not take the time."""
    totals = []
    for (_, of_method, _), outcome in done:
        if of_method == method and outcome.result is not None:
            times = Folder(outcome.cell.place).server_times()
            if len(times) < outcome.result["rounds"]:
                return None
            totals.append(sum(times.values()))
    return sum(totals) / len(totals) if totals else None
