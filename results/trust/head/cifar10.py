"""Measure head evidence of a convolutional network: CELM_DATA=... python results/trust/head/cifar10.py

Protocol in PROTOCOL.md, fixed before the first measurement: CIFAR-10 with 1,000 images a class, model `cnn`, 5 clients,
5 rounds of warm-up, in three splits at five seeds. The federation aggregates by CELM and is watched by head evidence.
All runs are reported. A stopped script resumes from cifar10.json beside this file; it also writes cifar10.md.

The measures are those of conditions.py, and `found`: 1 if the free-rider has the lowest score, or the Maverick the
highest, else 0. Step label skew has neither. `celm found` is the same by CELM's evidence of the last warm-up round.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from itertools import product
from pathlib import Path
from typing import Any

import torch
from conditions import Watched, client_scores, differences, measure, watch, with_error

from celm.base.files import dump_json, write_text

TARGET = Path(__file__).with_name("cifar10.json")
SEEDS = (50, 51, 52, 53, 54)
EXTREME: dict[str, Callable[..., str] | None] = {"free_rider": min, "sls": None, "maverick": max}
"""Split to the extreme of the scores that the special client, client-0, should have."""
SPECIAL = "client-0"
Results = Mapping[str, Mapping[str, Any]]


def tables(split: str) -> dict[str, Any]:
    """Return the settings of a federation."""
    return {"dataset": {"name": "cifar10", "limit": 1000}, "split": {"name": split}, "model": {"name": "cnn"}}


def measure_cell(split: str, watched: Watched) -> dict[str, float | None]:
    """Return the measures of one federation."""
    return {
        **measure(watched),
        "found": _is_found(split, client_scores(watched.claims, watched.counts)),
        "celm found": _is_found(split, client_scores(watched.evidence, watched.counts)),
    }


def _is_found(split: str, by_client: Mapping[str, float]) -> float | None:
    extreme = EXTREME[split]
    return None if extreme is None else float(extreme(by_client, key=by_client.__getitem__) == SPECIAL)


def complete_seeds(results: Results) -> list[int]:
    """Return the seeds of which every split is measured."""
    return [seed for seed in SEEDS if all(f"{split}/{seed}" in results for split in EXTREME)]


def format_table(results: Results) -> str:
    """Return the means over the complete seeds, and the paired differences over all federations."""
    seeds = complete_seeds(results)
    if not seeds:
        return "No seed is complete.\n"
    measures = list(next(iter(results.values())))
    lines = ["| | federations | " + " | ".join(measures) + " |", "|---" * (len(measures) + 2) + "|"]
    for split in EXTREME:
        chosen = [results[f"{split}/{seed}"] for seed in seeds]
        defined = {m: [r[m] for r in chosen if r[m] is not None] for m in measures}
        cells = [with_error(values) if values else "–" for values in defined.values()]
        lines.append(f"| {split} | {len(chosen)} | " + " | ".join(cells) + " |")
    everything = [results[f"{split}/{seed}"] for split in EXTREME for seed in seeds]
    lines += ["", "| head minus CELM, paired | |", "|---|---|"]
    for title, values in zip(("distance", "correlation"), differences(everything), strict=True):
        lines.append(f"| {title} | {with_error(values, signed=True)} |")
    return "\n".join(lines) + "\n"


def main() -> None:
    torch.set_num_threads(1)
    results: dict[str, dict[str, Any]] = json.loads(TARGET.read_text()) if TARGET.exists() else {}
    for seed, split in product(SEEDS, EXTREME):
        key = f"{split}/{seed}"
        if key not in results:
            results[key] = measure_cell(split, watch(tables(split), seed))
            write_text(TARGET, dump_json(results, indent=1) + "\n")
            print(key, flush=True)
    write_text(TARGET.with_suffix(".md"), format_table(results))


if __name__ == "__main__":
    main()
