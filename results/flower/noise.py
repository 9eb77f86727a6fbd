"""What differential-privacy noise does to CELM: CELM_DATA=... python results/flower/noise.py (about ten core-minutes).

Clients clip the change they send to length C and add Gaussian noise of standard deviation z C to every value, as
Flower's `LocalDpMod` does. The protocol is in README.md beside this file; what came out is in noise.json, noise.svg.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from statistics import mean, stdev
from typing import Any

import matplotlib.pyplot as plt
import torch

from celm.base.files import write_text
from celm.base.randomness import generator
from celm.engines.in_process import InProcess
from celm.federation.assembly import assemble, resolve
from celm.federation.experiment import Experiment
from celm.federation.jobs import Job, Outcome
from celm.federation.rounds import begin, play

HERE = Path(__file__).parent
CLIP = 1.0
LEVELS = (0.0, 0.0003, 0.001, 0.003, 0.01, 0.03, 0.1, 0.3)
SEEDS = (42, 43, 44)
ROUNDS = 30
RULES = {
    "fedavg": {"name": "fedavg"},
    "celm": {"name": "celm", "warmup": 5},
    "calibrated": {"name": "celm", "warmup": 5, "evidence": "calibrated"},
}


class Private(InProcess):
    """Clients that clip and blur what they send."""

    def __init__(self, workbench: Any, level: float) -> None:
        super().__init__(workbench)
        self.level = level
        self.lengths: list[float] = []

    def work(self, jobs: Sequence[Job]) -> list[Outcome]:
        return [self.blurred(job, outcome) for job, outcome in zip(jobs, super().work(jobs), strict=True)]

    def blurred(self, job: Job, outcome: Outcome) -> Outcome:
        sent, model = job.delivery.model, outcome.update.model
        change = {name: model[name] - sent[name] for name in sent}
        length = float(torch.sqrt(sum((step.double() ** 2).sum() for step in change.values())))
        self.lengths.append(length)
        scale = min(1.0, CLIP / length) if length else 1.0
        draw = generator(self.workbench.seed, "noise", job.number, job.client)
        noisy = {
            name: sent[name] + scale * step + self.level * CLIP * torch.randn(step.shape, generator=draw)
            for name, step in change.items()
        }
        return replace(outcome, update=replace(outcome.update, model=noisy))


def one(rule: str, level: float, seed: int) -> dict[str, Any]:
    tables = {
        "dataset": {"name": "fashion_mnist", "limit": 1000},
        "split": "pls",
        "rule": RULES[rule],
        "run": {
            "rounds": ROUNDS,
            "seed": seed,
            "workers": 0,
            "evaluate_every": ROUNDS,
            "local_heads": 0 if rule == "fedavg" else 5,
        },
    }
    federation = assemble(resolve(Experiment.parse(tables)))
    engine = Private(federation.workbench, level)
    state, records = begin(federation), []
    while state.number < ROUNDS:
        played = play(federation, state, engine)
        state = played.state
        records.append(played.record)
    found: dict[str, Any] = {
        "rule": rule,
        "level": level,
        "seed": seed,
        "accuracy": records[-1]["accuracy"],
        "weights": records[-1]["standing"],
        "length": mean(engine.lengths),
    }
    if rule != "fedavg":
        evidence = next(record["evidence"] for record in reversed(records) if record["evidence"])
        absent = [
            value
            for client, row in evidence.items()
            for value, count in zip(row, federation.counts[client], strict=True)
            if not count
        ]
        total = sum(map(sum, evidence.values()))
        found["absent"] = sum(absent) / total if total else None
        found["evidence"] = total
    return found


def table(runs: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """A row for each level: mean and standard deviation over the seeds."""

    def of(rule: str, level: float) -> list[dict[str, Any]]:
        return [run for run in runs if run["rule"] == rule and run["level"] == level]

    return [
        {
            "z": level,
            "fedavg": {"accuracy": spread([100 * run["accuracy"] for run in of("fedavg", level)])},
            **{rule: judged(of(rule, level), of(rule, 0.0)) for rule in ("celm", "calibrated")},
        }
        for level in LEVELS
    ]


def judged(runs: Sequence[dict[str, Any]], silent: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Against the runs of the same seeds without noise."""
    before = {run["seed"]: run["weights"] for run in silent}
    moved = [
        sum(abs(run["weights"][name] - weight) for name, weight in before[run["seed"]].items()) / 2
        for run in runs
    ]
    absent = [100 * run["absent"] for run in runs if run["absent"] is not None]
    return {
        "accuracy": spread([100 * run["accuracy"] for run in runs]),
        "weights_moved": spread([100 * value for value in moved]),
        "evidence_on_absent_classes": spread(absent) if len(absent) > 1 else None,
        "evidence": spread([run["evidence"] for run in runs]),
    }


def spread(values: Sequence[float]) -> list[float]:
    return [round(mean(values), 2), round(stdev(values), 2)]


def draw(rows: Sequence[dict[str, Any]]) -> None:
    figure, panels = plt.subplots(1, 3, figsize=(12, 3.2), layout="constrained")
    places = range(len(rows))
    names = {"fedavg": "FedAvg", "celm": "CELM, paper", "calibrated": "CELM, calibrated"}
    for axes, key, label in zip(
        panels,
        ("accuracy", "weights_moved", "evidence_on_absent_classes"),
        ("test accuracy, %", "weights moved, %", "evidence on absent classes, %"),
        strict=True,
    ):
        for rule, name in names.items():
            known = [
                (place, row[rule][key]) for place, row in zip(places, rows, strict=True) if row[rule].get(key)
            ]
            if known:
                means, errors = [value[0] for _, value in known], [value[1] for _, value in known]
                axes.errorbar([place for place, _ in known], means, errors, label=name, capsize=3)
        axes.set_xticks(list(places), [f"{row['z']:g}" for row in rows])
        axes.set_xlabel("noise multiplier z")
        axes.set_ylabel(label)
        axes.legend()
    figure.savefig(HERE / "noise.svg", metadata={"Date": None})


if __name__ == "__main__":
    torch.set_num_threads(1)
    place = HERE / "noise.json"
    runs = json.loads(place.read_text())["runs"] if place.exists() else []
    done = {(run["rule"], run["level"], run["seed"]) for run in runs}
    for seed in SEEDS:
        for level in LEVELS:
            for rule in RULES:
                if (rule, level, seed) in done:
                    continue
                runs.append(one(rule, level, seed))
                write_text(place, json.dumps({"runs": runs}, indent=1) + "\n")
                print(
                    json.dumps(
                        {key: runs[-1].get(key) for key in ("rule", "level", "seed", "accuracy", "absent")}
                    ),
                    flush=True,
                )
    rows = table(runs)
    write_text(place, json.dumps({"rows": rows, "runs": runs}, indent=1) + "\n")
    draw(rows)
