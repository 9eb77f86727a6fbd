"""What a grid will take, before it is run."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from celm.engines.choice import expected_seconds
from celm.federation.assembly import assemble
from celm.study.grid import Cell, finished, rounds_done


def expected_cost(cells: Sequence[Cell]) -> dict[str, Any]:
    """Runs, those done, and hours on one core for the rest.

    A run's time is that of its training, from one timed step on its own data and model; runs that share dataset,
    split, model, training and number of clients are timed once. Probes and evaluation come on top, some 5 to 20 %.
    """
    known: dict[str, float] = {}
    seconds = 0.0
    for cell in cells:
        if finished(cell) is not None:
            continue
        tables = cell.experiment.tables()
        members = len(cell.experiment.run.clients or ()) or cell.experiment.split.clients
        alike = [*(tables[name] for name in ("dataset", "model", "train")), tables["split"]["name"], members]
        likeness = repr(alike)
        if likeness not in known:
            known[likeness] = expected_seconds(assemble(cell.experiment), 1)
        seconds += known[likeness] * (cell.rounds - rounds_done(cell))
    done = sum(finished(cell) is not None for cell in cells)
    return {"runs": len(cells), "done": done, "hours": round(seconds / 3600, 6)}
