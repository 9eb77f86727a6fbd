"""Clients that are alike."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from celm.data.split import Dealing, Indices, Split, named
from celm.data.splits.dirichlet import drawn
from celm.data.splits.parts import require

ALPHA = 100.0


@dataclass(frozen=True)
class Iid(Split):
    """Clients alike: every client holds about an equal part of every class.

    The paper's IID: the `dirichlet` split with alpha = 100, so parts differ by some 10 %. Every sample is
    dealt. Where the data are so few that rounding leaves a client empty, it gets one sample of the largest.
    """

    def deal(
        self,
        labels: Indices,
        classes: int,
        clients: int,
        rng: np.random.RandomState,
        owners: Sequence[str] | None = None,
    ) -> Dealing:
        require(labels, clients)
        parts = drawn(labels, classes, clients, rng, ALPHA, min_samples=0)
        for i, part in enumerate(parts):
            if not len(part):
                largest = max(range(clients), key=lambda j: len(parts[j]))
                parts[i], parts[largest] = parts[largest][-1:], parts[largest][:-1]
        return Dealing(named(parts))
