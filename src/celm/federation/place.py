"""Where a run goes when nobody says."""

from __future__ import annotations

import re
from itertools import count
from pathlib import Path

from celm.base.files import explained
from celm.federation.experiment import Experiment


def default_place(experiment: Experiment) -> Path:
    """A new folder `runs/DATASET-SPLIT-METHOD-seedS`, with a number where that is taken.

    It is made here, so that two runs that start together do not take the same one.
    """
    parts = (experiment.dataset.name, experiment.split.name, experiment.method, f"seed{experiment.run.seed}")
    name = "-".join(part for part in parts if part)
    base = Path("runs") / re.sub(r"[^A-Za-z0-9_+.-]", "_", name)
    candidates = (base if i == 1 else base.with_name(f"{base.name}-{i}") for i in count(1))
    return next(path for path in candidates if claimed(path))


def claimed(path: Path) -> bool:
    with explained(path, "create"):
        try:
            path.mkdir(parents=True)
        except FileExistsError:
            return False
    return True
