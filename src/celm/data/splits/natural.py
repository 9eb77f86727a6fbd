"""The clients that the dataset itself names."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from celm.base.client_order import natural_sorted
from celm.base.errors import CelmError
from celm.data.split import Indices, Partition, Split


@dataclass(frozen=True)
class Natural(Split):
    """Natural: each sample belongs to the client that the dataset names.

    A client is a hospital, a device or a writer, for example.

    Clients keep their names, in natural order (centre-2 before centre-10). Nothing is random, and the data determines
    the number of clients: `split.clients` is ignored.
    """

    def partition(
        self,
        labels: Indices,
        classes: int,
        clients: int,
        rng: np.random.RandomState,
        client_ids: Sequence[str] | None = None,
    ) -> Partition:
        if client_ids is None:
            raise CelmError(
                "split 'natural': the dataset does not name the client of each sample",
                "choose another split, or a dataset with named clients such as fedisic",
            )
        if len(client_ids) != len(labels):
            raise CelmError(
                f"split 'natural': {len(client_ids)} client names for {len(labels)} training samples"
            )
        if not len(client_ids):
            raise CelmError("split 'natural': the dataset has no training samples")
        rows_by_client: dict[str, list[int]] = {}
        for row, client_id in enumerate(client_ids):
            rows_by_client.setdefault(client_id, []).append(row)
        return Partition(
            {name: np.array(rows_by_client[name], dtype=np.int64) for name in natural_sorted(rows_by_client)}
        )
