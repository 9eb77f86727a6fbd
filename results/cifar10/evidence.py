"""What evidence says of who holds what, from the collected runs: python results/cifar10/evidence.py.

Where there is a free-rider, its detection over 200 rounds, in which weights that were frozen stay as they are.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.spatial.distance import jensenshannon

from celm.metrics.free_riders import detect

ROUNDS = 200

Matrix = NDArray[np.float64]
"""A row a client, a column a class."""


def matrix(by_client: dict[str, list[float]]) -> Matrix:
    return np.array([by_client[client] for client in sorted(by_client)], dtype=float)


def distance(held: Matrix, found: Matrix) -> float:
    """Between the two as distributions over clients and classes."""
    return float(jensenshannon(held.ravel() / held.sum(), found.ravel() / found.sum()))


def tell_holdings(run: dict[str, Any], held: Matrix, found: Matrix) -> None:
    missed = (held > 0) & (found == 0)
    print(f"  not held: {(held == 0).sum()} pairs, evidence on {((held == 0) & (found > 0)).sum()}")
    print(f"  held: {(held > 0).sum()} pairs, evidence on {((held > 0) & (found > 0)).sum()};", end=" ")
    print(f"images of the others: {sorted(int(count) for count in held[missed])}")
    sizes = held.sum(axis=1)
    if np.ptp(sizes) > 0:
        weights = [run["weights"][client] for client in sorted(run["weights"])]
        print(f"  weights and sizes correlate at {np.corrcoef(weights, sizes)[0, 1]:.3f}")
    uniform = distance(held, np.ones_like(held))
    print(f"  distance to the truth {distance(held, found):.3f}, of a uniform guess {uniform:.3f}")


def tell_free_riders(run: dict[str, Any], held: Matrix, found: Matrix) -> None:
    totals = found.sum(axis=0)
    for rider in run["free_riders"]:
        row = sorted(run["counts"]).index(rider)
        its = np.flatnonzero(held[row])
        parts = [f"{found[row, i] / totals[i]:.2f}" if totals[i] else "none" for i in its]
        print(f"  the free-rider's part of the evidence of its classes: {' '.join(parts)}")
    standing = run["standing"]
    last = [t for t, weights in enumerate(standing, 1) if min(weights, key=weights.get) in run["free_riders"]]
    print("  a free-rider is last in rounds", *last)
    told = detect(standing + standing[-1:] * (ROUNDS - len(standing)), run["free_riders"])
    frozen = {client: round(weight, 3) for client, weight in standing[-1].items()}
    print(f"  AUROC {told.auroc:.3f}, FPR {told.fpr:.3f}, TPR {told.tpr:.3f}; frozen weights {frozen}")


def tell_rounds(run: dict[str, Any], held: Matrix) -> None:
    by_round = [matrix(evidence) for evidence in run["evidence_by_round"]]
    print("  round by round: distance", *(f"{distance(held, found):.3f}" for found in by_round))
    if not any(setting in run["settings"] for setting in ('evidence = "calibrated"', "debias = false")):
        print("    level taken off", *(f"{level:.1f}" for level in run["levels"]))
    print("    mean evidence", *(f"{found.mean():.1f}" for found in by_round))
    print("    held, and none", *(((held > 0) & (found == 0)).sum() for found in by_round))


if __name__ == "__main__":
    for path in sorted(Path(__file__).parent.glob("paper/*.json")):
        for name, run in json.loads(path.read_text()).items():
            if "evidence" not in run:
                continue
            print(f"{path.stem}, {name}")
            held, found = matrix(run["counts"]), matrix(run["evidence"])
            tell_holdings(run, held, found)
            if "standing" in run:
                tell_free_riders(run, held, found)
            if "evidence_by_round" in run:
                tell_rounds(run, held)
