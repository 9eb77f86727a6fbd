"""Measure the core claims: python results/core/measure.py [--only FILTER]; resumable, finished cells are kept.

One process a core, one thread each. Every cell is one `celm run` at the paper's settings; what it found goes to
`cells/`, the table to README.md beside this file.
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
    place = RUNS / name
    started = (place / "settings.toml").exists()
    where = ["--resume", str(place)] if started else ["--out", str(place), *options, "--set", "run.workers=0"]
    command = [sys.executable, "-m", "celm", "run", *where, "--format", "json"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        print(f"{name}: {done.stderr.strip()}", flush=True)
        return
    result = json.loads(done.stdout)
    del result["run"]
    rounds = [json.loads(line) for line in (place / "rounds.jsonl").read_text().splitlines()]
    result["command"] = "celm run " + " ".join(options)
    result["settings"] = (place / "settings.toml").read_text()
    result["accuracy_by_round"] = [record["accuracy"] for record in rounds]
    target.parent.mkdir(exist_ok=True)
    write_text(target, json.dumps(result, indent=1) + "\n")
    print(f"{name}: {100 * result['accuracy']:.2f} % in {result['seconds']:.0f} s", flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--only", default="")
    parser.add_argument("--processes", type=int, default=2)
    given = parser.parse_args()
    cells = [cell for cell in FASHION + CIFAR if given.only in cell[0]]
    with ThreadPoolExecutor(given.processes) as pool:
        list(pool.map(measure, cells))
