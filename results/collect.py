"""Gather the finished runs of a study or comparison into one small file: python results/collect.py FOLDER OUT.json.

Kept: what accuracies, distances of evidence and the detection of free-riders can be computed from again. With
`--every-round` the evidence of every probed round, not of the last alone, and the level that was taken off.
"""

from __future__ import annotations

import json
from argparse import ArgumentParser
from pathlib import Path
from typing import Any

from celm.base.files import write_text

KEPT = ("seed", "accuracy", "balanced_accuracy", "rare_class_accuracy", "per_class", "weights", "seconds")


def gathered(place: Path, every_round: bool) -> dict[str, Any]:
    result = json.loads((place / "result.json").read_text())
    rounds = [json.loads(line) for line in (place / "rounds.jsonl").read_text().splitlines()]
    probed = [record for record in rounds if record["evidence"] is not None]
    found = {name: result[name] for name in KEPT} | {"counts": result["counts"]}
    found["every_tenth_round"] = shortened(
        [record["accuracy"] for record in rounds[9::10] if "accuracy" in record]
    )
    if probed:
        found |= {"evidence": shortened(probed[-1]["evidence"]), "probed_rounds": len(probed)}
    if every_round:
        found["evidence_by_round"] = [shortened(record["evidence"]) for record in probed]
        found["levels"] = [shortened(record["diagnostics"]["bias"]) for record in probed]
    if result["free_riders"]:
        standing = [shortened(record["standing"]) for record in rounds if record["standing"] is not None]
        found |= {"free_riders": result["free_riders"], "standing": standing}
    return {**found, "settings": (place / "settings.toml").read_text()}


def shortened(value: Any) -> Any:
    """Five digits are enough for every figure that is shown."""
    if isinstance(value, dict):
        return {name: shortened(part) for name, part in value.items()}
    if isinstance(value, list):
        return [shortened(part) for part in value]
    return float(f"{value:.5g}")


def text(runs: dict[str, dict[str, Any]]) -> str:
    """JSON with a line for every value of a run."""
    parts = []
    for name, run in runs.items():
        lines = [f"  {json.dumps(key)}: {json.dumps(value)}" for key, value in run.items()]
        parts.append(f" {json.dumps(name)}: {{\n" + ",\n".join(lines) + "\n }")
    return "{\n" + ",\n".join(parts) + "\n}\n"


if __name__ == "__main__":
    parser = ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--every-round", action="store_true")
    asked = parser.parse_args()
    cells = asked.folder / "cells" if (asked.folder / "cells").is_dir() else asked.folder
    places = [path.parent for path in sorted(cells.glob("*/result.json"))]
    found = {place.name: gathered(place, asked.every_round) for place in places}
    asked.out.parent.mkdir(parents=True, exist_ok=True)
    write_text(asked.out, text(found))
    print(f"{len(found)} runs in {asked.out}")
