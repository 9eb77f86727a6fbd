"""A free-rider and a Maverick in one federation."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

import numpy as np
from pydantic import Field

from celm.data.split import Indices, Partition
from celm.data.splits.free_rider import FreeRider
from celm.data.splits.helpers import (
    check_clients,
    check_nonempty,
    concat_shuffled,
    deal_evenly,
    resolve_rare_classes,
    shuffle_rows_by_class,
)


@dataclass(frozen=True)
class FreeRiderAndMaverick(FreeRider):
    """The first client is a free-rider, the last one a Maverick.

    The Maverick is the only holder of the rare classes.

    This definition is ours, like `free_rider`. The last client holds all samples of `rare_classes` (by default the last
    30 % of the classes, as in `maverick`) and no others. The other clients hold equal parts of every other class. Then
    the free-rider's part is changed as in `free_rider`, with the same settings; its few labels are common ones.
    A detector should flag the first client and not the last, though both have few labels.
    """

    rare_classes: Annotated[tuple[int, ...], Field(min_length=1)] | None = None
    """Classes that only the Maverick holds; by default the last 30 %."""

    def partition(
        self,
        labels: Indices,
        classes: int,
        clients: int,
        rng: np.random.RandomState,
        client_ids: Sequence[str] | None = None,
    ) -> Partition:
        check_clients(labels, clients, min_clients=3, hint="a free-rider, a Maverick and another client")
        rare = resolve_rare_classes(self.rare_classes, classes)
        rows_by_class = shuffle_rows_by_class(labels, classes, rng)
        client_pieces = deal_evenly([rows_by_class[k] for k in range(classes) if k not in rare], clients - 1)
        parts = [
            concat_shuffled(pieces, rng) for pieces in [*client_pieces, [rows_by_class[k] for k in rare]]
        ]
        check_nonempty(parts)
        return self.make_partition(parts, rare, labels, classes, rng)
