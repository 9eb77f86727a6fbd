"""Compare head evidence as aggregation weights with CELM and FedAvg: python results/trust/head/weights.py

The runs are those of weights.toml beside this file, collected in weights.json; CELM and FedAvg come from the committed
runs of the studies main, iid and maverick. The script writes weights.md. Protocol in PROTOCOL.md.

    CELM_DATA=... celm study results/trust/head/weights.toml --out runs/head/weights
    python results/collect.py runs/head/weights results/trust/head/weights.json
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from math import sqrt
from pathlib import Path
from statistics import mean, stdev
from typing import Any

from celm.base.files import write_text
from celm.study.spec import load_study, slug

HERE = Path(__file__).parent
RESULTS = HERE.parents[1]
COMMITTED = ("main", "iid", "maverick")
RARE = "rare_class_accuracy"
METHODS = ("fedavg", "celm", "head")
Runs = Mapping[str, Mapping[str, Any]]


def load_runs() -> dict[str, dict[str, Any]]:
    """Return all runs that are compared, by `ROW-METHOD-seedN`."""
    runs: dict[str, dict[str, Any]] = {}
    for name in COMMITTED:
        runs |= json.loads((RESULTS / name / "runs.json").read_text())
    own = HERE / "weights.json"
    return runs | (json.loads(own.read_text()) if own.exists() else {})


def measured_rows() -> list[tuple[str, str]]:
    """Return row and measure of each line of the table."""
    found = []
    for row in load_study(str(HERE / "weights.toml")).rows:
        found += [(slug(row.label), measure) for measure in row.metrics or ("accuracy",)]
    return found


def complete_seeds(runs: Runs) -> list[int]:
    """Return the seeds at which every row has all methods."""
    rows = {row for row, _ in measured_rows()}
    seeds = load_study(str(HERE / "weights.toml")).seeds
    return [
        seed
        for seed in seeds
        if all(f"{row}-{method}-seed{seed}" in runs for row in rows for method in METHODS)
    ]


def points(runs: Runs, row: str, measure: str, method: str, seeds: Sequence[int]) -> list[float]:
    """Return a measure in percent at each seed."""
    return [100 * runs[f"{row}-{method}-seed{seed}"][measure] for seed in seeds]


def differences(runs: Runs, row: str, measure: str, other: str, seeds: Sequence[int]) -> list[float]:
    """Return the points by which head evidence is ahead of another method, seed by seed."""
    ours, theirs = (points(runs, row, measure, method, seeds) for method in ("head", other))
    return [one - two for one, two in zip(ours, theirs, strict=True)]


def format_table(runs: Runs) -> str:
    """Return accuracy by split, and the paired differences with their mean over splits."""
    seeds = complete_seeds(runs)
    if not seeds:
        return "No seed is complete.\n"
    lines = [f"Seeds: {', '.join(map(str, seeds))}. Percent, mean ± standard deviation over seeds.", ""]
    lines.append("| | FedAvg | CELM | head evidence | head - CELM, by seed | head - FedAvg, by seed |")
    lines.append("|---" * 6 + "|")
    means: dict[str, list[float]] = {"celm": [], "fedavg": []}
    for row, measure in measured_rows():
        cells = [_spread(points(runs, row, measure, method, seeds)) for method in METHODS]
        for other in ("celm", "fedavg"):
            found = differences(runs, row, measure, other, seeds)
            cells.append(f"{mean(found):+.2f} ({', '.join(f'{value:+.2f}' for value in found)})")
            if measure != RARE:
                means[other].append(mean(found))
        lines.append(f"| {row}, {measure} | " + " | ".join(cells) + " |")
    lines += ["", "| mean over splits, without rare classes | ± standard error |", "|---|---|"]
    for other, values in means.items():
        error = stdev(values) / sqrt(len(values))
        lines.append(f"| head - {other} | {mean(values):+.2f} ± {error:.2f} |")
    return "\n".join(lines) + "\n"


def _spread(values: Sequence[float]) -> str:
    spread = f" ± {stdev(values):.2f}" if len(values) > 1 else ""
    return f"{mean(values):.2f}{spread}"


if __name__ == "__main__":
    write_text(HERE / "weights.md", format_table(load_runs()))
