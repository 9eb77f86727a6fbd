"""Measure the time of the whole `main` table of FashionMNIST, and its critical path.

    CELM_DATA=... python benchmarks/main_study.py [--seed 42] [--workers 2]

One of three seeds is measured: 25 of the table's 75 runs (five splits, five methods), each with the paper's 100 rounds.
`celm study main` runs them with one worker per core, in a new folder. The whole table takes three times as long. The
critical path is the longest run: its rounds are sequential and use one core, so more cores cannot make the table faster
than this run. Accuracies should be equal to those committed in `results/main`.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from celm.base.files import dump_json, write_text
from celm.engines.select import available_cores
from timing import describe_machine, timed

OUT = Path("results/bench/main_study.json")
COMMITTED = Path("results/main/runs.json")
SEEDS = 3


def measure(seed: int, workers: int) -> dict[str, Any]:
    machine_info = describe_machine()
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary) / "study"
        command = [sys.executable, "-m", "celm", "study", "main", "--out", str(folder)]
        command += ["--only", f"dataset=fashion_mnist seed={seed}", "--workers", str(workers)]
        _, wall = timed(lambda: subprocess.run(command, check=True))
        results = {
            path.parent.name: json.loads(path.read_text()) for path in folder.glob("cells/*/result.json")
        }
    longest = max(results, key=lambda name: results[name]["seconds"])
    committed = json.loads(COMMITTED.read_text()) if COMMITTED.exists() else {}
    return {
        "machine": machine_info,
        "workers": workers,
        "runs": len(results),
        "wall_seconds": wall,
        "seconds_of_all_runs": sum(result["seconds"] for result in results.values()),
        "hours_of_the_table": wall * SEEDS / 3600,
        "longest": {"run": longest, "seconds": results[longest]["seconds"]},
        "same_accuracy_as_committed": sum(
            name in committed and committed[name]["accuracy"] == result["accuracy"]
            for name, result in results.items()
        ),
    }


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seed", type=int, default=42)
    parser.add_argument("--workers", type=int, default=available_cores(), help="by default one per core")
    parser.add_argument("--out", type=Path, default=OUT)
    options = parser.parse_args(arguments)
    write_text(options.out, dump_json(measure(options.seed, options.workers), indent=1) + "\n")
    print(options.out)


if __name__ == "__main__":
    main()
