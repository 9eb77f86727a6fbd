"""Measure whether re-checks name a client that stops training, and do not name honest clients.

    CELM_DATA=... python results/trust/idle.py [--workers 2] [--out results/trust/idle.json]

Protocol, fixed before the first run. FashionMNIST, 5 clients, 30 rounds, warm-up of 5, calibrated evidence; seeds 44
to 53. The threshold (0.22 of the median, `celm.core.idle_detection`) was chosen on other seeds.

attacked  On PLS, client-0 is honest in the warm-up and then idle, in each way of IDLE, with `every:10` and with
          `on-drift`. Reported: the number of rounds after the freeze until client-0 is first named idle (target: at
          most 15). Also reported: any other client that is named, and client-0 if it is named while it is honest
          (target: none).
honest    All clients are honest, with `on-drift`, on pls, sls, dirichlet 0.05, maverick and free_rider. The free-rider
          of that split trains on few samples, so it is not idle. Reported: every client that is named, and the number
          of rounds in which it is named, with those of the warm-up (target: none).

Every run is reported. Runs are saved in the folder `--cells`, so a stopped script resumes.
"""

from __future__ import annotations

import argparse
import json
import re
from pathlib import Path
from typing import Any

from celm.base.files import dump_json, write_text
from celm.experiment.config import Experiment
from celm.federation.build import resolve_defaults
from celm.runs.run import Run
from celm.runs.run_folder import RunFolder
from celm.study.local_pool import ProcessPool
from celm.study.plan import RunSpec
from celm.study.scheduler import run_all

SEEDS = range(44, 54)
WARMUP = 5
IDLE: dict[str, dict[str, Any]] = {
    "plain": {"name": "copy_global"},
    "noise": {"name": "copy_global", "strength": 1.0},
    "noise x3, head x10": {"name": "copy_global", "strength": 3.0, "head": 10.0},
    "all x1.3": {"name": "copy_global", "scale": 1.3},
    "replay": {"name": "replay_delta"},
}
"""Attacks of client-0 after the warm-up, when its weight is frozen."""
SPLITS: dict[str, dict[str, Any]] = {
    "pls": {"name": "pls"},
    "sls": {"name": "sls"},
    "dirichlet 0.05": {"name": "dirichlet", "alpha": 0.05},
    "maverick": {"name": "maverick"},
    "free_rider": {"name": "free_rider"},
}


def make_run_spec(
    folder: Path, split: dict[str, Any], idle_check: str, seed: int, idle: str | None
) -> RunSpec:
    tables: dict[str, Any] = {
        "dataset": {"name": "fashion_mnist"},
        "split": split,
        "rule": {"name": "celm", "evidence": "calibrated", "warmup": WARMUP, "idle_check": idle_check},
        "run": {"rounds": 30, "seed": seed, "workers": 0, "evaluate_every": 30},
    }
    if idle is not None:
        tables["attack"] = {**IDLE[idle], "client": "client-0", "first_round": WARMUP + 1}
    label = "honest" if idle is None else f"idle: {idle}"
    name = "-".join(re.sub(r"\W+", "", part) for part in (split["name"], idle_check, label, f"seed{seed}"))
    return RunSpec(
        resolve_defaults(Experiment.parse(tables)).experiment,
        folder / name,
        str(split["name"]),
        f"{idle_check}, {label}",
    )


def rounds_named_idle(run: Run) -> dict[str, list[int]]:
    """Return client to the rounds in which it was named idle, counted from the freeze; 0 and less is the warm-up."""
    rounds_by_client: dict[str, list[int]] = {}
    for record in run.rounds:
        for client in record["diagnostics"].get("idle", []):
            rounds_by_client.setdefault(client, []).append(record["round"] - WARMUP)
    return rounds_by_client


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--cells", type=Path, default=Path("runs/idle"))
    parser.add_argument("--out", type=Path, default=Path("results/trust/idle.json"))
    options = parser.parse_args()
    attacked_runs = [
        make_run_spec(options.cells, SPLITS["pls"], idle_check, seed, idle)
        for idle_check in ("every:10", "on-drift")
        for idle in IDLE
        for seed in SEEDS
    ]
    honest_runs = [
        make_run_spec(options.cells, split, "on-drift", seed, None)
        for split in SPLITS.values()
        for seed in SEEDS
    ]
    outcomes = run_all([*attacked_runs, *honest_runs], lambda: ProcessPool(options.workers))
    results = []
    for outcome in outcomes:
        idle = (
            {} if outcome.result is None else rounds_named_idle(Run.read(RunFolder.open(outcome.spec.folder)))
        )
        results.append(
            {
                "split": outcome.spec.row,
                "method": outcome.spec.method,
                "seed": outcome.spec.experiment.run.seed,
                "error": outcome.error,
                "named": idle,
            }
        )
    write_text(options.out, dump_json(results, indent=1) + "\n")
    print(json.dumps(summarise_results(results), indent=1))


def summarise_results(results: list[dict[str, Any]]) -> list[dict[str, Any]]:
    rows = []
    for key in dict.fromkeys((result["split"], result["method"]) for result in results):
        runs = [run for run in results if (run["split"], run["method"]) == key and not run["error"]]
        attacked = "idle" in key[1]
        first = [
            next((round for round in run["named"].get("client-0", []) if round > 0), None) for run in runs
        ]
        others = [
            [client, run["seed"], len(false_rounds)]
            for run in runs
            for client, rounds in run["named"].items()
            if (false_rounds := [r for r in rounds if r <= 0 or not (attacked and client == "client-0")])
        ]
        rows.append({"split": key[0], "method": key[1], "runs": len(runs), "honest clients named": others})
        if attacked:
            within = sum(delay is not None and delay <= 15 for delay in first)
            rows[-1] |= {"found within 15 rounds": within, "rounds until found": first}
    return rows


if __name__ == "__main__":
    main()
