"""The experiment that the job repeats: five clients on a part of the digits."""

from __future__ import annotations

from typing import Any

from celm.experiment.config import Experiment

ROUNDS = 3
CLIENTS = tuple(f"client-{i}" for i in range(5))
RULE: dict[str, Any] = {"warmup": 2}
PROBE = {"steps": 10}


def experiment() -> Experiment:
    return Experiment.parse(
        {
            "dataset": {"name": "digits", "limit": 20},
            "split": {"name": "pls"},
            "model": {"name": "mlp", "widths": [32]},
            "rule": {"name": "celm", **RULE},
            "probe": PROBE,
            "run": {"rounds": ROUNDS, "workers": 0},
        }
    )
