"""Does looking again find a client that stops working, and does it leave honest ones alone?

    CELM_DATA=... python results/trust/idle.py [--workers 2] [--out results/trust/idle.json]

Protocol, fixed before the first run. FashionMNIST, 5 clients, 30 rounds, warm-up of 5, calibrated evidence; seeds 44
to 53, none of which the threshold (0.22 of the median, `celm.method.movement`) was chosen on.

found     client-0 on PLS, honest in the warm-up, then idle in each of the ways of IDLE, each with `every:10` and with
          `on-drift`. Reported: the number of rounds after the freeze until client-0 is first named idle (target: at
          most 15), and every other client that is ever named, and client-0 while it is honest (target: nobody).
spared    everybody honest, `on-drift`, on pls, sls, dirichlet 0.05, maverick and free_rider (whose free-rider trains on
          few samples, so it works). Reported: every client that is ever named, and in how many rounds, those of the
          warm-up included (target: nobody).

Every run is reported. Runs are kept in a folder beside (`--cells`), so that the script goes on where it was stopped.
"""

from __future__ import annotations

import argparse
import json
import re
from pathlib import Path
from typing import Any

from celm.base.files import dump_json, write_text
from celm.federation.assembly import resolve
from celm.federation.experiment import Experiment
from celm.federation.folder import Folder
from celm.federation.run import Run
from celm.study.grid import Cell, run_grid
from celm.study.processes import Processes

SEEDS = range(44, 54)
WARMUP = 5
IDLE: dict[str, dict[str, Any]] = {
    "plain": {"name": "copy_global"},
    "noise": {"name": "copy_global", "strength": 1.0},
    "noise x3, head x10": {"name": "copy_global", "strength": 3.0, "head": 10.0},
    "all x1.3": {"name": "copy_global", "scale": 1.3},
    "replay": {"name": "replay_delta"},
}
"""What client-0 sends once it is not judged any more."""
SPLITS: dict[str, dict[str, Any]] = {
    "pls": {"name": "pls"},
    "sls": {"name": "sls"},
    "dirichlet 0.05": {"name": "dirichlet", "alpha": 0.05},
    "maverick": {"name": "maverick"},
    "free_rider": {"name": "free_rider"},
}


def cell(place: Path, split: dict[str, Any], reprobe: str, seed: int, idle: str | None) -> Cell:
    tables: dict[str, Any] = {
        "dataset": {"name": "fashion_mnist"},
        "split": split,
        "rule": {"name": "celm", "evidence": "calibrated", "warmup": WARMUP, "reprobe": reprobe},
        "run": {"rounds": 30, "seed": seed, "workers": 0, "evaluate_every": 30},
    }
    if idle is not None:
        tables["attack"] = {**IDLE[idle], "client": "client-0", "first": WARMUP + 1}
    label = "honest" if idle is None else f"idle: {idle}"
    name = "-".join(re.sub(r"\W+", "", part) for part in (split["name"], reprobe, label, f"seed{seed}"))
    return Cell(resolve(Experiment.parse(tables)), place / name, str(split["name"]), f"{reprobe}, {label}")


def named(run: Run) -> dict[str, list[int]]:
    """Client to the rounds in which it was named idle, counted from the freeze on; 0 and less is the warm-up."""
    found: dict[str, list[int]] = {}
    for record in run.rounds:
        for client in record["diagnostics"].get("idle", []):
            found.setdefault(client, []).append(record["round"] - WARMUP)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--cells", type=Path, default=Path("runs/idle"))
    parser.add_argument("--out", type=Path, default=Path("results/trust/idle.json"))
    given = parser.parse_args()
    found = [
        cell(given.cells, SPLITS["pls"], reprobe, seed, idle)
        for reprobe in ("every:10", "on-drift")
        for idle in IDLE
        for seed in SEEDS
    ]
    spared = [cell(given.cells, split, "on-drift", seed, None) for split in SPLITS.values() for seed in SEEDS]
    outcomes = run_grid([*found, *spared], lambda: Processes(given.workers))
    results = []
    for outcome in outcomes:
        idle = {} if outcome.result is None else named(Run.read(Folder.open(outcome.cell.place)))
        results.append(
            {
                "split": outcome.cell.row,
                "method": outcome.cell.method,
                "seed": outcome.cell.experiment.run.seed,
                "error": outcome.error,
                "named": idle,
            }
        )
    write_text(given.out, dump_json(results, indent=1) + "\n")
    print(json.dumps(summary(results), indent=1))


def summary(results: list[dict[str, Any]]) -> list[dict[str, Any]]:
    rows = []
    for key in dict.fromkeys((each["split"], each["method"]) for each in results):
        runs = [each for each in results if (each["split"], each["method"]) == key and not each["error"]]
        attacked = "idle" in key[1]
        first = [
            next((round for round in each["named"].get("client-0", []) if round > 0), None) for each in runs
        ]
        others = [
            [client, each["seed"], len(wrongly)]
            for each in runs
            for client, rounds in each["named"].items()
            if (wrongly := [r for r in rounds if r <= 0 or not (attacked and client == "client-0")])
        ]
        rows.append({"split": key[0], "method": key[1], "runs": len(runs), "honest clients named": others})
        if attacked:
            within = sum(each is not None and each <= 15 for each in first)
            rows[-1] |= {"found within 15 rounds": within, "rounds until found": first}
    return rows


if __name__ == "__main__":
    main()
