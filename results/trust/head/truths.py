"""Train every coalition of the confirmation: CELM_DATA=... python results/trust/head/truths.py [--seeds 50 51]

Each federation of `celm study estimators` becomes one file of `--cells`. It has what every coalition is worth, and the
true label counts. Federations with a file are skipped, so the script resumes; several processes share the work. Models
are evaluated after the last round only, and no run folders are written. The worth is that of the study all the same.
"""

from __future__ import annotations

import argparse
import fcntl
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from celm.base.files import dump_json, write_text
from celm.engines.in_process import InProcessEngine
from celm.experiment.config import Experiment
from celm.federation.build import Federation, ResolvedExperiment, build_federation, resolve_defaults
from celm.federation.round import initial_state, run_round
from celm.study.spec import Row, load_study, slug

SEEDS = (50, 51, 52, 53, 54)
ROUNDS = 30
MAX_CLIENTS = 10
"""Of larger federations only the label counts are stored."""
UTILITIES = ("accuracy", "rare_class_accuracy")


@dataclass(frozen=True)
class Cell:
    """One federation of the confirmation."""

    row: Row
    seed: int

    @property
    def name(self) -> str:
        return f"{slug(self.row.label)}-seed{self.seed}"

    def resolve(self, **tables: dict[str, Any]) -> ResolvedExperiment:
        """Return the settings with those of the row; the last round is evaluated."""
        settings = {**self.row.settings, **tables}
        settings["run"] = {
            "rounds": ROUNDS,
            "seed": self.seed,
            "workers": 0,
            "evaluate_every": ROUNDS,
            **tables.get("run", {}),
        }
        return resolve_defaults(Experiment.parse(settings))


def cells(seeds: tuple[int, ...] = SEEDS, study: str = "estimators") -> list[Cell]:
    """Return the federations seed by seed, the smallest first."""
    rows = sorted(load_study(study).rows, key=lambda row: row.num_clients or 0)
    return [Cell(row, seed) for seed in seeds for row in rows]


def coalition_worth(federation: Federation, members: tuple[str, ...]) -> dict[str, float | None]:
    """Train the members by themselves; return each utility of their last global model."""
    coalition = federation.with_context(clients=members)
    engine, state = InProcessEngine(coalition.trainer), initial_state(coalition)
    record: dict[str, Any] = {}
    while state.round_number < coalition.rounds:
        result = run_round(coalition, state, engine)
        state, record = result.state, result.record
    return {utility: record[utility] for utility in UTILITIES}


def measure(cell: Cell) -> dict[str, Any]:
    """Return the worth of all coalitions of a federation; bit i of a coalition is 1 if client i is a member."""
    federation = build_federation(cell.resolve(rule={"name": "fedavg"}))
    assert not federation.attacks
    clients = federation.context.clients
    worth = {}
    for coalition in range(1, 1 << len(clients)) if len(clients) <= MAX_CLIENTS else ():
        members = tuple(name for i, name in enumerate(clients) if coalition >> i & 1)
        worth[coalition] = coalition_worth(federation, members)
    return {"row": cell.row.label, "seed": cell.seed, "counts": federation.counts, "worth": worth}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, nargs="+", default=SEEDS)
    parser.add_argument("--study", default="estimators", help="a study's name or file")
    parser.add_argument("--cells", type=Path, default=Path("runs/head/truths"))
    options = parser.parse_args()
    torch.set_num_threads(1)
    options.cells.mkdir(parents=True, exist_ok=True)
    for cell in cells(tuple(options.seeds), options.study):
        target = options.cells / f"{cell.name}.json"
        with (options.cells / f"{cell.name}.lock").open("w") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                continue  # another process trains it
            if not target.exists():
                write_text(target, dump_json(measure(cell)) + "\n")
                print(cell.name, flush=True)


if __name__ == "__main__":
    main()
