"""Clients with equal class distributions, up to chance."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from celm.data.split import Indices, Partition, Split, name_clients
from celm.data.splits.dirichlet import draw_dirichlet_parts
from celm.data.splits.helpers import check_clients

_IID_ALPHA = 100.0


@dataclass(frozen=True)
class Iid(Split):
    """IID: every client holds about an equal part of every class.

    This is the paper's IID: the `dirichlet` split with alpha = 100, so parts differ by some 10 %. Every sample is used.
    If rounding leaves a client empty, because there are few samples, it gets one sample of the largest client.
    """

    def partition(
        self,
        labels: Indices,
        classes: int,
        clients: int,
        rng: np.random.RandomState,
        client_ids: Sequence[str] | None = None,
    ) -> Partition:
        check_clients(labels, clients)
        parts = draw_dirichlet_parts(labels, classes, clients, rng, _IID_ALPHA, min_samples=0)
        for i, part in enumerate(parts):
            if not len(part):
                largest = max(range(clients), key=lambda j: len(parts[j]))
                parts[i], parts[largest] = parts[largest][-1:], parts[largest][:-1]
        return Partition(name_clients(parts))
