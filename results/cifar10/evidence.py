"""What evidence says of who holds what, from the collected runs: python results/cifar10/evidence.py.

Where there is a free-rider, its detection over 200 rounds, in which weights that were frozen stay as they are.
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
from scipy.spatial.distance import jensenshannon

from celm.metrics.free_riders import detect

ROUNDS = 200

for path in sorted(Path(__file__).parent.glob("paper/*.json")):
    for name, run in json.loads(path.read_text()).items():
        if "evidence" not in run:
            continue
        clients = list(run["counts"])
        held = np.array([run["counts"][client] for client in clients], dtype=float)
        found = np.array([run["evidence"][client] for client in clients])
        weights = [run["weights"][client] for client in clients]
        truth = held.ravel() / held.sum()
        missed = (held > 0) & (found == 0)
        print(f"{path.stem}, {name}")
        print(f"  not held: {(held == 0).sum()} pairs, evidence on {((held == 0) & (found > 0)).sum()}")
        print(f"  held: {(held > 0).sum()} pairs, evidence on {((held > 0) & (found > 0)).sum()};", end=" ")
        print(f"images of the others: {sorted(int(count) for count in held[missed])}")
        sizes = held.sum(axis=1)
        if np.ptp(sizes) > 0:
            print(f"  weights and sizes correlate at {np.corrcoef(weights, sizes)[0, 1]:.3f}")
        distance = jensenshannon(truth, found.ravel() / found.sum())
        uniform = jensenshannon(truth, np.full_like(truth, 1 / truth.size))
        print(f"  distance to the truth {distance:.3f}, of a uniform guess {uniform:.3f}")
        if "standing" in run:
            standing = run["standing"]
            detection = detect(standing + standing[-1:] * (ROUNDS - len(standing)), run["free_riders"])
            frozen = {client: round(weight, 3) for client, weight in standing[-1].items()}
            rates = f"FPR {detection.fpr:.3f}, TPR {detection.tpr:.3f}"
            for rider in run["free_riders"]:
                its = np.flatnonzero(held[clients.index(rider)])
                parts = [f"{found[clients.index(rider), i] / found[:, i].sum():.2f}" for i in its]
                print(f"  the free-rider's part of the evidence of its classes: {' '.join(parts)}")
            print(f"  AUROC {detection.auroc:.3f}, {rates}; frozen weights {frozen}")
        if "levels" in run:
            by_round = [np.array([round[client] for client in clients]) for round in run["evidence_by_round"]]
            distances = [jensenshannon(truth, found.ravel() / found.sum()) for found in by_round]
            print("  round by round: distance", " ".join(f"{distance:.3f}" for distance in distances))
            print("    level taken off", " ".join(f"{level:.1f}" for level in run["levels"]))
            print("    mean evidence", " ".join(f"{found.mean():.1f}" for found in by_round))
            print(
                "    held, and none", " ".join(f"{((held > 0) & (found == 0)).sum()}" for found in by_round)
            )
