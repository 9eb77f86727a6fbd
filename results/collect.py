"""Collect the finished runs of a study or comparison in one small file: python results/collect.py FOLDER OUT.json.

Accuracies, distances of evidence and the detection of free-riders can be recomputed from this file. With
`--every-round` it has the evidence of each probed round, not only of the last, and the level that was subtracted.
"""

from __future__ import annotations

import json
from argparse import ArgumentParser
from pathlib import Path
from typing import Any

from celm.base.files import write_text
from celm.records.run_files import RunFiles

COPIED_KEYS = (
    "seed",
    "accuracy",
    "balanced_accuracy",
    "rare_class_accuracy",
    "per_class",
    "weights",
    "seconds",
)


def collect_run(folder: Path, every_round: bool) -> dict[str, Any]:
    finished = RunFiles.open(folder).read_finished()
    result, rounds = finished.result.model_dump(), finished.records
    probed = [record for record in rounds if record["evidence"] is not None]
    summary = {name: result[name] for name in COPIED_KEYS} | {"counts": result["counts"]}
    summary["every_tenth_round"] = round_digits(
        [record["accuracy"] for record in rounds[9::10] if "accuracy" in record]
    )
    if probed:
        summary |= {"evidence": round_digits(probed[-1]["evidence"]), "probed_rounds": len(probed)}
    if every_round:
        summary["evidence_by_round"] = [round_digits(record["evidence"]) for record in probed]
        summary["levels"] = [round_digits(record["diagnostics"]["bias"]) for record in probed]
    if result["free_riders"]:
        weights_by_round = [
            round_digits(record["client_weights"])
            for record in rounds
            if record["client_weights"] is not None
        ]
        summary |= {"free_riders": result["free_riders"], "client_weights": weights_by_round}
    return {**summary, "settings": (folder / "settings.toml").read_text()}


def round_digits(value: Any) -> Any:
    """Return the value with five significant digits, enough for all tables and figures."""
    if isinstance(value, dict):
        return {name: round_digits(part) for name, part in value.items()}
    if isinstance(value, list):
        return [round_digits(part) for part in value]
    return float(f"{value:.5g}")


def format_runs(runs: dict[str, dict[str, Any]]) -> str:
    """Return JSON with one line for each value of a run."""
    parts = []
    for name, run in runs.items():
        lines = [f"  {json.dumps(key)}: {json.dumps(value)}" for key, value in run.items()]
        parts.append(f" {json.dumps(name)}: {{\n" + ",\n".join(lines) + "\n }")
    return "{\n" + ",\n".join(parts) + "\n}\n"


def collect(folder: Path, out: Path, every_round: bool = False) -> int:
    """Write the finished runs of a study folder, or of a folder of runs, to `out`; return how many there are."""
    cells = folder / "cells" if (folder / "cells").is_dir() else folder
    folders = [path.parent for path in sorted(cells.glob("*/result.json"))]
    runs = {folder.name: collect_run(folder, every_round) for folder in folders}
    out.parent.mkdir(parents=True, exist_ok=True)
    write_text(out, format_runs(runs))
    return len(runs)


if __name__ == "__main__":
    parser = ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--every-round", action="store_true")
    options = parser.parse_args()
    count = collect(options.folder, options.out, options.every_round)
    print(f"{count} runs in {options.out}")
