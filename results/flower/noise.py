"""Measure the effect of differential-privacy noise on CELM: CELM_DATA=... python results/flower/noise.py

Clients clip the change they send to norm C and add Gaussian noise of standard deviation z C to every value, as
Flower's `LocalDpMod` does. The protocol is in README.md beside this file; the results are in noise.json and noise.svg.
The script takes about ten core-minutes.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from statistics import mean, stdev
from typing import Any

import matplotlib.pyplot as plt
import torch

from celm.base.files import write_text
from celm.base.randomness import make_generator
from celm.engines.in_process import InProcessEngine
from celm.experiment.config import Experiment
from celm.federation.build import build_federation, resolve_defaults
from celm.federation.client_trainer import ClientResult, ClientTask
from celm.federation.round import initial_state, run_round

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


class PrivateEngine(InProcessEngine):
    """In-process engine whose clients clip their changes and add noise to them."""

    def __init__(self, trainer: Any, level: float) -> None:
        super().__init__(trainer)
        self.level = level
        self.norms: list[float] = []

    def train(self, tasks: Sequence[ClientTask]) -> list[ClientResult]:
        return [
            self.clip_and_add_noise(task, result)
            for task, result in zip(tasks, super().train(tasks), strict=True)
        ]

    def clip_and_add_noise(self, task: ClientTask, result: ClientResult) -> ClientResult:
        received, model = task.message.model, result.update.model
        delta = {name: model[name] - received[name] for name in received}
        norm = math.sqrt(sum(float((step.double() ** 2).sum()) for step in delta.values()))
        self.norms.append(norm)
        scale = min(1.0, CLIP / norm) if norm else 1.0
        rng = make_generator(self.trainer.seed, "noise", task.round_number, task.client)
        noisy = {
            name: received[name] + scale * step + self.level * CLIP * torch.randn(step.shape, generator=rng)
            for name, step in delta.items()
        }
        return replace(result, update=replace(result.update, model=noisy))


def run_once(rule: str, level: float, seed: int) -> dict[str, Any]:
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
    federation = build_federation(resolve_defaults(Experiment.parse(tables)))
    engine = PrivateEngine(federation.trainer, level)
    state, records = initial_state(federation), []
    while state.round_number < ROUNDS:
        round_result = run_round(federation, state, engine)
        state = round_result.state
        records.append(round_result.record)
    result: dict[str, Any] = {
        "rule": rule,
        "level": level,
        "seed": seed,
        "accuracy": records[-1]["accuracy"],
        "weights": records[-1]["client_weights"],
        "length": mean(engine.norms),
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
        result["absent"] = sum(absent) / total if total else None
        result["evidence"] = total
    return result


def table(runs: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return one row per noise level: mean and standard deviation over the seeds."""

    def select_runs(rule: str, level: float) -> list[dict[str, Any]]:
        return [run for run in runs if run["rule"] == rule and run["level"] == level]

    return [
        {
            "z": level,
            "fedavg": {
                "accuracy": mean_and_std([100 * run["accuracy"] for run in select_runs("fedavg", level)])
            },
            **{
                rule: compare_with_noiseless(select_runs(rule, level), select_runs(rule, 0.0))
                for rule in ("celm", "calibrated")
            },
        }
        for level in LEVELS
    ]


def compare_with_noiseless(
    runs: Sequence[dict[str, Any]], noiseless: Sequence[dict[str, Any]]
) -> dict[str, Any]:
    """Compare runs with the runs of the same seeds without noise."""
    noiseless_weights = {run["seed"]: run["weights"] for run in noiseless}
    weight_changes = [
        sum(abs(run["weights"][name] - weight) for name, weight in noiseless_weights[run["seed"]].items()) / 2
        for run in runs
    ]
    absent = [100 * run["absent"] for run in runs if run["absent"] is not None]
    return {
        "accuracy": mean_and_std([100 * run["accuracy"] for run in runs]),
        "weights_moved": mean_and_std([100 * value for value in weight_changes]),
        "evidence_on_absent_classes": mean_and_std(absent) if len(absent) > 1 else None,
        "evidence": mean_and_std([run["evidence"] for run in runs]),
    }


def mean_and_std(values: Sequence[float]) -> list[float]:
    return [round(mean(values), 2), round(stdev(values), 2)]


def draw_figure(rows: Sequence[dict[str, Any]]) -> None:
    figure, panels = plt.subplots(1, 3, figsize=(12, 3.2), layout="constrained")
    positions = range(len(rows))
    names = {"fedavg": "FedAvg", "celm": "CELM, paper", "calibrated": "CELM, calibrated"}
    for axes, key, label in zip(
        panels,
        ("accuracy", "weights_moved", "evidence_on_absent_classes"),
        ("test accuracy, %", "weights moved, %", "evidence on absent classes, %"),
        strict=True,
    ):
        for rule, name in names.items():
            points = [
                (position, row[rule][key])
                for position, row in zip(positions, rows, strict=True)
                if row[rule].get(key)
            ]
            if points:
                means, errors = [value[0] for _, value in points], [value[1] for _, value in points]
                axes.errorbar([position for position, _ in points], means, errors, label=name, capsize=3)
        axes.set_xticks(list(positions), [f"{row['z']:g}" for row in rows])
        axes.set_xlabel("noise multiplier z")
        axes.set_ylabel(label)
        axes.legend()
    figure.savefig(HERE / "noise.svg", metadata={"Date": None})


if __name__ == "__main__":
    torch.set_num_threads(1)
    path = HERE / "noise.json"
    runs = json.loads(path.read_text())["runs"] if path.exists() else []
    finished = {(run["rule"], run["level"], run["seed"]) for run in runs}
    for seed in SEEDS:
        for level in LEVELS:
            for rule in RULES:
                if (rule, level, seed) in finished:
                    continue
                runs.append(run_once(rule, level, seed))
                write_text(path, json.dumps({"runs": runs}, indent=1) + "\n")
                print(
                    json.dumps(
                        {key: runs[-1].get(key) for key in ("rule", "level", "seed", "accuracy", "absent")}
                    ),
                    flush=True,
                )
    rows = table(runs)
    write_text(path, json.dumps({"rows": rows, "runs": runs}, indent=1) + "\n")
    draw_figure(rows)
