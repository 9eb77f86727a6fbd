"""What a rule's server step (deliver, check, weigh, merge) costs, as a share of a whole round.

    CELM_DATA=... python benchmarks/server_step.py [--rounds 6]

FashionMNIST, PLS, 5 clients, one thread, in process; median over rounds. What is asked of the validation set is
shown apart, and CELM is timed after its warm-up: probes and utilities are what those methods are.
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

from celm.engines.in_process import InProcess
from celm.federation.assembly import assemble, resolve
from celm.federation.experiment import Experiment
from celm.federation.jobs import Job, Outcome, Set, Workbench
from celm.federation.rounds import begin, play
from celm.models.state import StateDict
from celm.rules import rules
from timing import timed


class Timed(InProcess):
    """The in-process engine, with the seconds it spends on training, on validation and on testing."""

    def __init__(self, workbench: Workbench) -> None:
        super().__init__(workbench)
        self.seconds = dict.fromkeys(("train", "validation", "test"), 0.0)

    def work(self, jobs: Sequence[Job]) -> list[Outcome]:
        done: list[Outcome] = self.timed("train", super().work, jobs)
        return done

    def evaluate(self, models: Sequence[StateDict], on: Set = "test") -> list[Tensor]:
        counts: list[Tensor] = self.timed(on, super().evaluate, models, on)
        return counts

    def timed(self, what: str, function: Callable[..., Any], *arguments: Any) -> Any:
        result, seconds = timed(function, *arguments)
        self.seconds[what] += seconds
        return result


def measure(rule: str, number: int) -> dict[str, float]:
    tables = {"dataset": "fashion_mnist", "split": "pls", "rule": rule, "run": {"rounds": 100, "workers": 0}}
    # One warm-up round only, so that the probe, which is CELM itself, stays out of the median.
    if rule == "celm":
        tables["rule"] = {"name": "celm", "warmup": 1}
    federation = assemble(resolve(Experiment.parse(tables)))
    state = begin(federation)
    shares, validations = [], []
    for _ in range(number):
        engine = Timed(federation.workbench)
        played, whole = timed(play, federation, state, engine)
        state = played.state
        server = whole - sum(engine.seconds.values())
        shares.append(server / whole)
        validations.append(engine.seconds["validation"] / whole)
    return {"server": median(shares), "validation": median(validations)}


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--out", type=Path, default=Path("results/bench/server_step.json"))
    given = parser.parse_args()
    torch.set_num_threads(1)
    found = {}
    for name in rules.names():
        found[name] = measure(name, given.rounds)
        share, asked = found[name]["server"], found[name]["validation"]
        print(f"{name:14} {100 * share:5.1f} % of the round, validation {100 * asked:5.1f} %", flush=True)
    given.out.parent.mkdir(parents=True, exist_ok=True)
    given.out.write_text(json.dumps(found, indent=1) + "\n")
