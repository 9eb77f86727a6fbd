"""Mavericks: clients that are the only holders of rare classes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

import numpy as np
from pydantic import Field

from celm.data.split import Indices, Partition, Split, name_clients
from celm.data.splits.helpers import (
    check_clients,
    check_nonempty,
    concat_shuffled,
    cut_to_smallest,
    deal_evenly,
    invalid_setting,
    resolve_rare_classes,
    shuffle_rows_by_class,
)


@dataclass(frozen=True)
class Maverick(Split):
    """Maverick: the first client is the only holder of rare classes.

    The other clients share the other classes equally.

    `rare_classes` are by default the last 30 % of the classes: 7, 8 and 9 of ten. With r of K classes rare and the rest
    shared by N - 1 clients, the ideal CELM weights are r/K and (K - r) / (K (N - 1)).

    - `mavericks`: the first clients, this many, share the rare classes equally.
    - `include_common`: Mavericks also hold an equal part of the other classes.
    - `leak`: this fraction of each rare class goes to the other clients, in equal parts.
    - `equalize`: every client is cut to the size of the smallest, at random. Otherwise every sample is used.
    """

    rare_classes: Annotated[tuple[int, ...], Field(min_length=1)] | None = None
    """Classes that only Mavericks hold; by default the last 30 %."""
    mavericks: Annotated[int, Field(gt=0)] = 1
    """Number of Mavericks, the first clients, that share the rare classes."""
    include_common: bool = False
    """Whether Mavericks also hold a part of the other classes."""
    leak: Annotated[float, Field(ge=0, le=1)] = 0.0
    """Fraction of the rare samples that goes to the other clients."""
    equalize: bool = False
    """Cut every client to the size of the smallest."""

    def partition(
        self,
        labels: Indices,
        classes: int,
        clients: int,
        rng: np.random.RandomState,
        client_ids: Sequence[str] | None = None,
    ) -> Partition:
        check_clients(labels, clients, min_clients=2, hint="a Maverick and another client")
        if self.mavericks >= clients:
            raise invalid_setting("mavericks", f"{self.mavericks} of {clients} clients leave no other client")
        rare = resolve_rare_classes(self.rare_classes, classes)
        rows_by_class = shuffle_rows_by_class(labels, classes, rng)
        common_rows = [rows_by_class[k] for k in range(classes) if k not in rare]
        leaked_counts = [int(self.leak * len(rows_by_class[k])) for k in rare]
        maverick_rows = [rows_by_class[k][count:] for k, count in zip(rare, leaked_counts, strict=True)]
        num_others = clients - self.mavericks

        client_pieces = [*deal_evenly(maverick_rows, self.mavericks), *([] for _ in range(num_others))]
        common_holders = range(0 if self.include_common else self.mavericks, clients)
        common_pieces = deal_evenly(common_rows, len(common_holders))
        for i, pieces in zip(common_holders, common_pieces, strict=True):
            client_pieces[i] += pieces
        leaked_rows = [rows_by_class[k][:count] for k, count in zip(rare, leaked_counts, strict=True)]
        other_pieces = client_pieces[self.mavericks :]
        for pieces, leaked_pieces in zip(other_pieces, deal_evenly(leaked_rows, num_others), strict=True):
            pieces += leaked_pieces

        parts = [concat_shuffled(pieces, rng) for pieces in client_pieces]
        check_nonempty(parts, "leak" if self.leak == 1 else "clients")
        if self.equalize:
            parts = cut_to_smallest(parts, rng)
        return Partition(name_clients(parts), rare_classes=rare)
