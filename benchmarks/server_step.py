"""Measure the time of each rule's server step (deliver, check, weigh, merge), as a share of a whole round.

    CELM_DATA=... python benchmarks/server_step.py [--rounds 6]

FashionMNIST, PLS, 5 clients, one thread, in process; median over rounds. Probes and utilities are the methods
themselves. So evaluations on the validation set are shown separately, and CELM is timed after its warm-up.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median
from typing import Any

import torch
from torch import Tensor

from celm.engines.in_process import InProcessEngine
from celm.experiment.config import Experiment
from celm.federation.build import build_federation, resolve_defaults
from celm.federation.client_trainer import ClientResult, ClientTask, ClientTrainer, EvalSet
from celm.federation.round import initial_state, run_round
from celm.models.state_dict import StateDict
from celm.rules import rules
from timing import timed


class TimedEngine(InProcessEngine):
    """In-process engine that measures the seconds of training, validation and testing."""

    def __init__(self, trainer: ClientTrainer) -> None:
        super().__init__(trainer)
        self.seconds = dict.fromkeys(("train", "validation", "test"), 0.0)

    def train(self, tasks: Sequence[ClientTask]) -> list[ClientResult]:
        results: list[ClientResult] = self.add_seconds("train", super().train, tasks)
        return results

    def evaluate(self, models: Sequence[StateDict], on: EvalSet = "test") -> list[Tensor]:
        counts: list[Tensor] = self.add_seconds(on, super().evaluate, models, on)
        return counts

    def add_seconds(self, stage: str, function: Callable[..., Any], *arguments: Any) -> Any:
        result, seconds = timed(function, *arguments)
        self.seconds[stage] += seconds
        return result


def measure(rule: str, rounds: int) -> dict[str, float]:
    tables = {"dataset": "fashion_mnist", "split": "pls", "rule": rule, "run": {"rounds": 100, "workers": 0}}
    # One warm-up round only, so that the probe, which is CELM itself, does not affect the median.
    if rule == "celm":
        tables["rule"] = {"name": "celm", "warmup": 1}
    federation = build_federation(resolve_defaults(Experiment.parse(tables)))
    state = initial_state(federation)
    shares, validations = [], []
    for _ in range(rounds):
        engine = TimedEngine(federation.trainer)
        result, round_seconds = timed(run_round, federation, state, engine)
        state = result.state
        server = round_seconds - sum(engine.seconds.values())
        shares.append(server / round_seconds)
        validations.append(engine.seconds["validation"] / round_seconds)
    return {"server": median(shares), "validation": median(validations)}


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--out", type=Path, default=Path("results/bench/server_step.json"))
    options = parser.parse_args()
    torch.set_num_threads(1)
    report = {}
    for name in rules.names():
        report[name] = measure(name, options.rounds)
        share, validation = report[name]["server"], report[name]["validation"]
        print(
            f"{name:14} {100 * share:5.1f} % of the round, validation {100 * validation:5.1f} %", flush=True
        )
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text(json.dumps(report, indent=1) + "\n")
