"""The clients that the data themselves name."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from celm.base.errors import CelmError
from celm.base.names import in_order
from celm.data.split import Dealing, Indices, Split


@dataclass(frozen=True)
class Natural(Split):
    """Natural: every sample stays with the owner that the dataset names (a hospital, a device, a writer).

    The clients are the owners, under their names and in natural order (centre-2 before centre-10). Nothing is
    random, and the number of clients is the data's: `split.clients` means nothing here.
    """

    def deal(
        self,
        labels: Indices,
        classes: int,
        clients: int,
        rng: np.random.RandomState,
        owners: Sequence[str] | None = None,
    ) -> Dealing:
        if owners is None:
            raise CelmError(
                "split 'natural': the dataset does not say who owns which sample",
                "choose another split, or a dataset with owners such as fedisic",
            )
        if len(owners) != len(labels):
            raise CelmError(f"split 'natural': {len(owners)} owners for {len(labels)} training samples")
        if not len(owners):
            raise CelmError("split 'natural': the dataset has no training samples")
        rows: dict[str, list[int]] = {}
        for row, owner in enumerate(owners):
            rows.setdefault(owner, []).append(row)
        return Dealing({name: np.array(rows[name], dtype=np.int64) for name in in_order(rows)})
