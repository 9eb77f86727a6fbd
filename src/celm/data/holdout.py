"""A fixed stratified hold-out for data that comes without a test part."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray


def hold_out(labels: NDArray[np.int64], fraction: float = 0.2) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Rows to train on and rows to test on, each in file order; the same for every run and every seed.

    Each class gives `fraction` of its samples, rounded, and keeps at least one. Numpy's legacy generator is
    used because its stream is frozen: scikit-learn's own splitters promise no such thing.
    """
    rng = np.random.RandomState(0)
    held = np.zeros(len(labels), dtype=bool)
    for label in np.unique(labels):
        rows = rng.permutation(np.flatnonzero(labels == label))
        wanted = max(1, round(fraction * len(rows)))
        held[rows[: min(wanted, len(rows) - 1)]] = True
    return np.flatnonzero(~held), np.flatnonzero(held)
