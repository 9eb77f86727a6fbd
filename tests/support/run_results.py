"""Results and rounds of runs that were never run."""

from __future__ import annotations

from typing import Any

from celm.records.run_records import RunResult


def make_result(**changes: Any) -> RunResult:
    """Return a result of three clients and two classes."""
    clients = ["client-0", "client-1", "client-2"]
    values: dict[str, Any] = {
        "dataset": "digits",
        "split": "pls",
        "model": "mlp",
        "rule": "fedavg",
        "objective": "plain",
        "seed": 1,
        "rounds": 3,
        "accuracy": 0.5,
        "balanced_accuracy": 0.5,
        "rare_class_accuracy": None,
        "per_class": [0.5, 0.5],
        "weights": dict.fromkeys(clients, 1 / 3),
        "evidence": None,
        "classes": ["cat", "dog"],
        "counts": {client: [1, 1] for client in clients},
        "seconds": 1.0,
    }
    return RunResult(**{**values, **changes})


def make_round(number: int, **changes: Any) -> dict[str, Any]:
    """Return the record of a round of one client, as the server step makes it."""
    values = {
        "round": number,
        "lr": 0.1,
        "clients": ["client-0"],
        "excluded": {},
        "weights": {"client-0": 1.0},
        "client_weights": {"client-0": 1.0},
        "scores": None,
        "evidence": None,
        "diagnostics": {},
    }
    return {**values, **changes}
