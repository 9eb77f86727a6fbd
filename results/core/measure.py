"""Measure the core claims: python results/core/measure.py [--only FILTER]

Every cell is one `celm run` at the paper's settings, in a process with one thread. Results are written to `cells/`; the
tables are in README.md beside this file. A stopped script resumes, and finished cells are not repeated.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from celm.base.files import write_text

HERE = Path(__file__).parent
RUNS = Path("runs") / "core"
SEEDS = (42, 43, 44)
FASHION = [
    (
        f"fashion_mnist-{split}-{rule}-{seed}",
        ["--dataset", "fashion_mnist", "--split", split, "--rule", rule, "--seed", seed],
    )
    for seed in map(str, SEEDS)
    for split in ("pls", "sls", "maverick", "iid")
    for rule in ("fedavg", "celm")
]
CIFAR = [
    (
        f"cifar10-pls-{rule}-42",
        ["--dataset", "cifar10", "--split", "pls", "--rule", rule, "--seed", "42", "--rounds", "20"],
    )
    for rule in ("fedavg", "celm")
]


def measure(cell: tuple[str, list[str]]) -> None:
    name, options = cell
    target = HERE / "cells" / f"{name}.json"
    if target.exists():
        return
    folder = RUNS / name
    started = (folder / "settings.toml").exists()
    run_options = (
        ["--resume", str(folder)] if started else ["--out", str(folder), *options, "--set", "run.workers=0"]
    )
    command = [sys.executable, "-m", "celm", "run", *run_options, "--format", "json"]
    completed = subprocess.run(command, capture_output=True, text=True, check=False)
    if completed.returncode:
        print(f"{name}: {completed.stderr.strip()}", flush=True)
        return
    result = json.loads(completed.stdout)
    del result["run"]
    rounds = [json.loads(line) for line in (folder / "rounds.jsonl").read_text().splitlines()]
    result["command"] = "celm run " + " ".join(options)
    result["settings"] = (folder / "settings.toml").read_text()
    result["accuracy_by_round"] = [record["accuracy"] for record in rounds]
    target.parent.mkdir(exist_ok=True)
    write_text(target, json.dumps(result, indent=1) + "\n")
    print(f"{name}: {100 * result['accuracy']:.2f} % in {result['seconds']:.0f} s", flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--only", default="")
    parser.add_argument("--processes", type=int, default=2)
    options = parser.parse_args()
    cells = [cell for cell in FASHION + CIFAR if options.only in cell[0]]
    with ThreadPoolExecutor(options.processes) as pool:
        list(pool.map(measure, cells))
