"""Where a run goes when nobody says."""

from __future__ import annotations

import re
from itertools import count
from pathlib import Path

from celm.federation.experiment import Experiment


def default_place(experiment: Experiment) -> Path:
    """`runs/DATASET-SPLIT-METHOD-seedS`, with a number where that is taken."""
    parts = (experiment.dataset.name, experiment.split.name, experiment.method, f"seed{experiment.run.seed}")
    name = "-".join(part for part in parts if part)
    base = Path("runs") / re.sub(r"[^A-Za-z0-9_+.-]", "_", name)
    candidates = (base if i == 1 else base.with_name(f"{base.name}-{i}") for i in count(1))
    return next(path for path in candidates if not path.exists())
