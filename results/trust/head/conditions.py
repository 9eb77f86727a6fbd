"""Measure head evidence under other models and training: CELM_DATA=... python results/trust/head/conditions.py

Protocol, fixed before the first measurement: FashionMNIST with 1,000 images a class, 5 clients, 5 rounds of warm-up;
splits pls, dirichlet 0.1 and maverick; seeds 55 to 57. The federation aggregates by CELM and is watched by head
evidence. CONDITIONS changes one setting at a time. Noise is in units of the norm to which updates are clipped: 0.003
is about the RMS of an update. All runs are reported; a stopped script resumes from conditions.json beside this file.

claims       mean over clients of the Jensen-Shannon distance between a client's claims and its true label proportions,
             0 (equal) to 0.83; beside it that of CELM's evidence and of a uniform guess
unheld       part of the pairs (client, class without a sample) with a claim above 0.001
mass         mean over clients of the sum of claims on classes without a sample
correlation  Pearson's, of scores with the scores that the true label counts would give; 0 if scores are equal
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from statistics import mean, stdev
from typing import Any

import numpy as np
import torch
from torch import nn

from celm.base.files import dump_json, write_text
from celm.core.evidence import scores
from celm.engines.in_process import InProcessEngine
from celm.experiment.config import Experiment
from celm.federation.build import build_federation, resolve_defaults
from celm.federation.round import initial_state, run_round
from celm.metrics.fairness import pearson
from celm.metrics.fidelity import jensen_shannon

TARGET = Path(__file__).with_name("conditions.json")
SEEDS = (55, 56, 57)
ROUNDS = 5
SPLITS: dict[str, dict[str, Any]] = {
    "pls": {"name": "pls"},
    "dirichlet 0.1": {"name": "dirichlet", "alpha": 0.1},
    "maverick": {"name": "maverick"},
}
ACTIVATIONS: dict[str, type[nn.Module]] = {"tanh": nn.Tanh, "gelu": nn.GELU}
TINY_VIT = {
    "name": "vit",
    "patch_size": 7,
    "hidden_size": 32,
    "layers": 2,
    "heads": 4,
    "intermediate_size": 64,
}
CONDITIONS: dict[str, dict[str, Any]] = {
    "ReLU, SGD": {},
    "momentum 0.9": {"train": {"momentum": 0.9}},
    "Adam": {"train": {"optimizer": "adam", "lr": 0.001}},
    "5 epochs": {"train": {"epochs": 5}},
    "label smoothing 0.1": {"train": {"label_smoothing": 0.1}},
    "FedProx": {"objective": "fedprox"},
    "FedRS": {"objective": "fedrs"},
    "tanh": {"model": {"name": "conditions:make_model", "last": "tanh"}},
    "GELU": {"model": {"name": "conditions:make_model", "last": "gelu"}},
    "LayerNorm": {"model": {"name": "conditions:make_model", "last": "layernorm"}},
    "tiny ViT": {"model": TINY_VIT},
    "clipped": {"train": {"dp_clip": 1.0}},
    "clipped, noise 0.001": {"train": {"dp_clip": 1.0, "dp_noise": 0.001}},
    "clipped, noise 0.003": {"train": {"dp_clip": 1.0, "dp_noise": 0.003}},
    "clipped, noise 0.01": {"train": {"dp_clip": 1.0, "dp_noise": 0.01}},
    "clipped, noise 0.03": {"train": {"dp_clip": 1.0, "dp_noise": 0.03}},
}


def make_model(input_shape: tuple[int, ...], classes: int, last: str) -> nn.Module:
    """Build the paper's model with other features before its head."""
    activation = ACTIVATIONS.get(last, nn.ReLU)
    normalisation = [nn.LayerNorm(64)] if last == "layernorm" else []
    size = int(np.prod(input_shape))
    body = [nn.Flatten(), nn.Linear(size, 128), activation(), nn.Linear(128, 64), activation()]
    return nn.Sequential(*body, *normalisation, nn.Linear(64, classes))


@dataclass(frozen=True)
class Watched:
    """What a federation that aggregates by CELM and is watched by head evidence leaves after its warm-up."""

    counts: Mapping[str, list[int]]
    """Client to its true label counts."""
    claims: Mapping[str, list[float]]
    """Client to its mean claims on each class."""
    evidence: Mapping[str, list[float]]
    """Client to CELM's evidence for each class."""
    accuracy: float


def watch(tables: Mapping[str, Any], seed: int) -> Watched:
    """Run one federation for the warm-up. The tables have its data, split, and settings that are not the default."""
    settings = {
        "rule": {"name": "celm", "warmup": ROUNDS},
        "observe": [{"name": "celm", "warmup": ROUNDS, "evidence": "head"}],
        "run": {"rounds": ROUNDS, "seed": seed, "workers": 0, "evaluate_every": ROUNDS},
        **tables,
    }
    federation = build_federation(resolve_defaults(Experiment.parse(settings)))
    engine, state = InProcessEngine(federation.trainer), initial_state(federation)
    record: dict[str, Any] = {}
    while state.round_number < ROUNDS:
        result = run_round(federation, state, engine)
        state, record = result.state, result.record
    claims = {name: c.mean.tolist() for name, c in state.server.observers["celm"].probe.claims.items()}
    return Watched(federation.counts, claims, record["evidence"], record["accuracy"])


def measure(watched: Watched) -> dict[str, float]:
    """Return the measures of one federation."""
    counts, claims, evidence = watched.counts, watched.claims, watched.evidence
    unheld = [claims[name][k] > 0.001 for name in counts for k, n in enumerate(counts[name]) if not n]
    uniform = {name: [1.0] * len(row) for name, row in counts.items()}
    return {
        "claims": mean_distance(counts, claims),
        "celm": mean_distance(counts, evidence),
        "uniform": mean_distance(counts, uniform),
        "unheld": mean(unheld) if unheld else 0.0,
        "mass": mean(
            sum(q for q, n in zip(claims[name], counts[name], strict=True) if not n) for name in counts
        ),
        "correlation": correlation(counts, claims),
        "celm correlation": correlation(counts, evidence),
        "accuracy": watched.accuracy,
    }


def condition_tables(condition: str, split: str) -> dict[str, Any]:
    """Return the settings of one condition on one split."""
    data = {"dataset": {"name": "fashion_mnist", "limit": 1000}, "split": SPLITS[split]}
    return {**data, **CONDITIONS[condition]}


def mean_distance(counts: Mapping[str, list[int]], found: Mapping[str, list[float]]) -> float:
    """Return the mean distance of label proportions; a client without evidence counts as uniform."""
    return mean(jensen_shannon(_proportions(counts[name]), _proportions(found[name])) for name in counts)


def _proportions(row: list[float] | list[int]) -> Any:
    values = np.asarray(row, dtype=np.float64)
    return values / values.sum() if values.sum() > 0 else np.full(len(values), 1 / len(values))


def correlation(counts: Mapping[str, list[int]], found: Mapping[str, list[float]]) -> float:
    """Return the correlation of scores with those of the label counts."""
    return pearson(client_scores(found, counts), client_scores(counts, counts)) or 0.0


def client_scores(
    table: Mapping[str, list[float]] | Mapping[str, list[int]], clients: Iterable[str]
) -> dict[str, float]:
    """Return client to the score that claims, evidence or label counts give."""
    names = list(clients)
    rows = torch.tensor([table[name] for name in names]).double()
    return dict(zip(names, scores(rows).tolist(), strict=True))


Results = Mapping[str, Mapping[str, float]]
"""`CONDITION/SPLIT/SEED` to the measures of the federation."""


def complete_seeds(results: Results, condition: str) -> list[int]:
    """Return the seeds at which a condition is measured on every split."""
    return [seed for seed in SEEDS if all(f"{condition}/{split}/{seed}" in results for split in SPLITS)]


def format_table(results: Results) -> str:
    """Return means and standard errors over the federations of each condition."""
    first = next(iter(results.values()))
    head = ["federations", *first, "distance: head - CELM", "correlation: head - CELM"]
    lines = ["| | " + " | ".join(head) + " |", "|---" * (len(head) + 1) + "|"]
    for condition in CONDITIONS:
        seeds = complete_seeds(results, condition)
        found = [results[f"{condition}/{split}/{seed}"] for seed in seeds for split in SPLITS]
        if found:
            cells = [with_error([r[m] for r in found]) for m in first]
            cells += [with_error(values, signed=True) for values in differences(found)]
            lines.append(f"| {condition} | {len(found)} | " + " | ".join(cells) + " |")
    return "\n".join([*lines, "", *format_splits(results)]) + "\n"


def differences(found: Sequence[Mapping[str, float]]) -> tuple[list[float], list[float]]:
    """Return head minus CELM, federation by federation: distances, and correlations."""
    distances = [r["claims"] - r["celm"] for r in found]
    return distances, [r["correlation"] - r["celm correlation"] for r in found]


def format_splits(results: Results) -> list[str]:
    """Return head and CELM on each split: distance and correlation, as means over seeds."""
    head = [f"{split}: {measure}" for split in SPLITS for measure in ("distance", "correlation")]
    lines = ["Head evidence, CELM; means over seeds:", "", "| | seeds | " + " | ".join(head) + " |"]
    lines.append("|---" * (len(head) + 2) + "|")
    for condition in CONDITIONS:
        if seeds := complete_seeds(results, condition):
            cells = []
            for split in SPLITS:
                found = [results[f"{condition}/{split}/{seed}"] for seed in seeds]
                for ours, theirs in (("claims", "celm"), ("correlation", "celm correlation")):
                    cells.append(f"{mean(r[ours] for r in found):.2f}, {mean(r[theirs] for r in found):.2f}")
            lines.append(f"| {condition} | {len(seeds)} | " + " | ".join(cells) + " |")
    return lines


def with_error(values: Sequence[float], signed: bool = False) -> str:
    """Return mean and standard error.

    >>> with_error([1.0, 3.0], signed=True)
    '+2.000 ± 1.000'
    """
    number = f"{mean(values):+.3f}" if signed else f"{mean(values):.3f}"
    return f"{number} ± {stdev(values) / len(values) ** 0.5:.3f}" if len(values) > 1 else number


def main() -> None:
    torch.set_num_threads(1)
    sys.path.insert(0, str(Path(__file__).parent))
    results: dict[str, dict[str, float]] = json.loads(TARGET.read_text()) if TARGET.exists() else {}
    for seed, condition, split in product(SEEDS, CONDITIONS, SPLITS):
        key = f"{condition}/{split}/{seed}"
        if key not in results:
            results[key] = measure(watch(condition_tables(condition, split), seed))
            write_text(TARGET, dump_json(results, indent=1) + "\n")
            print(key, flush=True)
    write_text(TARGET.with_suffix(".md"), format_table(results))


if __name__ == "__main__":
    main()
