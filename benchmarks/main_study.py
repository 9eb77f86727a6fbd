"""How long the whole `main` table of FashionMNIST takes, and what bounds it.

    CELM_DATA=... python benchmarks/main_study.py [--seed 42] [--workers 2]

One seed of the three: 25 of the table's 75 runs (five splits, five methods), each of the paper's 100 rounds, by `celm
study main` with a worker a core, in a new folder. The whole table is three times that. The critical path is the
longest run: rounds follow one another, so no number of cores makes the table faster than that, as long as every run
keeps to one core. Accuracies are compared with those committed in `results/main`: they should be the same numbers.
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
from celm.engines.choice import available_cores
from timing import machine, timed

OUT = Path("results/bench/main_study.json")
COMMITTED = Path("results/main/runs.json")
SEEDS = 3


def measure(seed: int, workers: int) -> dict[str, Any]:
    about = machine()
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place) / "study"
        command = [sys.executable, "-m", "celm", "study", "main", "--out", str(folder)]
        command += ["--only", f"dataset=fashion_mnist seed={seed}", "--workers", str(workers)]
        _, wall = timed(lambda: subprocess.run(command, check=True))
        found = {
            path.parent.name: json.loads(path.read_text()) for path in folder.glob("cells/*/result.json")
        }
    longest = max(found, key=lambda name: found[name]["seconds"])
    committed = json.loads(COMMITTED.read_text()) if COMMITTED.exists() else {}
    return {
        "machine": about,
        "workers": workers,
        "runs": len(found),
        "wall_seconds": wall,
        "seconds_of_all_runs": sum(result["seconds"] for result in found.values()),
        "hours_of_the_table": wall * SEEDS / 3600,
        "longest": {"run": longest, "seconds": found[longest]["seconds"]},
        "same_accuracy_as_committed": sum(
            name in committed and committed[name]["accuracy"] == result["accuracy"]
            for name, result in found.items()
        ),
    }


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seed", type=int, default=42)
    parser.add_argument("--workers", type=int, default=available_cores(), help="by default one a core")
    parser.add_argument("--out", type=Path, default=OUT)
    given = parser.parse_args(arguments)
    write_text(given.out, dump_json(measure(given.seed, given.workers), indent=1) + "\n")
    print(given.out)


if __name__ == "__main__":
    main()
