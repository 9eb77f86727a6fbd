"""The experiment that all jobs share. Each member keeps a tenth of its samples for validation."""

from __future__ import annotations

from celm.experiment.config import Experiment
from celm.federation.build import Federation, build_federation, resolve_defaults

ROUNDS = 10
SEED = 42


def make_federation() -> Federation:
    tables = {
        "dataset": {"name": "digits"},
        "split": {"name": "pls", "seed": SEED},
        "model": {"name": "mlp", "widths": [32]},
        "run": {"rounds": ROUNDS, "seed": SEED, "validation": 0.1, "workers": 0},
    }
    return build_federation(resolve_defaults(Experiment.parse(tables)))
