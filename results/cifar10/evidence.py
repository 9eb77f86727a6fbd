"""What evidence says of who holds what, from the collected runs: python results/cifar10/evidence.py."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
from scipy.spatial.distance import jensenshannon

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
