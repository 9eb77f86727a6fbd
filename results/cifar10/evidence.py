"""Compare evidence with the true class counts, from the collected runs: python results/cifar10/evidence.py.

For runs with a free-rider, it also prints its detection over 200 rounds, in which frozen weights stay as they are.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.spatial.distance import jensenshannon

from celm.metrics.free_riders import detect_free_riders

ROUNDS = 200

Matrix = NDArray[np.float64]
"""One row per client, one column per class."""


def to_matrix(by_client: dict[str, list[float]]) -> Matrix:
    return np.array([by_client[client] for client in sorted(by_client)], dtype=float)


def js_distance(counts: Matrix, evidence: Matrix) -> float:
    """Return the Jensen-Shannon distance of the two, as distributions over clients and classes."""
    return float(jensenshannon(counts.ravel() / counts.sum(), evidence.ravel() / evidence.sum()))


def print_holdings(run: dict[str, Any], counts: Matrix, evidence: Matrix) -> None:
    missed = (counts > 0) & (evidence == 0)
    print(f"  not held: {(counts == 0).sum()} pairs, evidence on {((counts == 0) & (evidence > 0)).sum()}")
    print(
        f"  held: {(counts > 0).sum()} pairs, evidence on {((counts > 0) & (evidence > 0)).sum()};", end=" "
    )
    print(f"images of the others: {sorted(int(count) for count in counts[missed])}")
    sizes = counts.sum(axis=1)
    if np.ptp(sizes) > 0:
        weights = [run["weights"][client] for client in sorted(run["weights"])]
        print(f"  weights and sizes correlate at {np.corrcoef(weights, sizes)[0, 1]:.3f}")
    uniform = js_distance(counts, np.ones_like(counts))
    print(f"  distance to the truth {js_distance(counts, evidence):.3f}, of a uniform guess {uniform:.3f}")


def print_free_riders(run: dict[str, Any], counts: Matrix, evidence: Matrix) -> None:
    totals = evidence.sum(axis=0)
    for rider in run["free_riders"]:
        row = sorted(run["counts"]).index(rider)
        rider_classes = np.flatnonzero(counts[row])
        parts = [f"{evidence[row, i] / totals[i]:.2f}" if totals[i] else "none" for i in rider_classes]
        print(f"  the free-rider's part of the evidence of its classes: {' '.join(parts)}")
    weights_by_round = run["client_weights"]
    last_rounds = [
        t
        for t, weights in enumerate(weights_by_round, 1)
        if min(weights, key=weights.get) in run["free_riders"]
    ]
    print("  a free-rider is last in rounds", *last_rounds)
    detection = detect_free_riders(
        weights_by_round + weights_by_round[-1:] * (ROUNDS - len(weights_by_round)), run["free_riders"]
    )
    frozen = {client: round(weight, 3) for client, weight in weights_by_round[-1].items()}
    print(
        f"  AUROC {detection.auroc:.3f}, FPR {detection.fpr:.3f}, TPR {detection.tpr:.3f}; frozen weights {frozen}"
    )


def print_rounds(run: dict[str, Any], counts: Matrix) -> None:
    by_round = [to_matrix(evidence) for evidence in run["evidence_by_round"]]
    print("  round by round: distance", *(f"{js_distance(counts, estimate):.3f}" for estimate in by_round))
    if not any(setting in run["settings"] for setting in ('evidence = "calibrated"', "debias = false")):
        print("    level taken off", *(f"{level:.1f}" for level in run["levels"]))
    print("    mean evidence", *(f"{estimate.mean():.1f}" for estimate in by_round))
    print("    held, and none", *(((counts > 0) & (estimate == 0)).sum() for estimate in by_round))


def main() -> None:
    for path in sorted(Path(__file__).parent.glob("paper/*.json")):
        for name, run in json.loads(path.read_text()).items():
            if "evidence" not in run:
                continue
            print(f"{path.stem}, {name}")
            counts, evidence = to_matrix(run["counts"]), to_matrix(run["evidence"])
            print_holdings(run, counts, evidence)
            if "client_weights" in run:
                print_free_riders(run, counts, evidence)
            if "evidence_by_round" in run:
                print_rounds(run, counts)


if __name__ == "__main__":
    main()
