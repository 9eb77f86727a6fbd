"""A client that replicates its data.

    its samples -> the same samples, `strength` further times each, labels included

The client really trains on them: it takes strength + 1 times as many steps a round and reports as many samples. Its
data say nothing new. Estimators that pay for size or for long updates pay for the copies. Of a hold-out, the copies
that are not held out are still trained on.
Reference: Han, Raskar et al., Replication-Robust Payoff-Allocation for Machine Learning Data Markets, 2020.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Annotated

import numpy as np
from pydantic import Field

from celm.attacks.attack import Attack
from celm.data.split import Indices, Partition


@dataclass(frozen=True)
class ReplicateData(Attack):
    """Trains on copies of its own samples, too.

    `strength` is the number of further copies of each sample.
    """

    strength: Annotated[int, Field(ge=0, le=1000)] = 2
    """Number of further copies of each sample."""

    def transform_partition(self, partition: Partition) -> Partition:
        return replace(
            partition,
            clients=self._with_copies(partition.clients),
            relabelled=self._with_copies(partition.relabelled),
        )

    def _with_copies(self, by_client: Mapping[str, Indices]) -> dict[str, Indices]:
        return {
            name: np.tile(values, self.strength + 1) if name == self.client else values
            for name, values in by_client.items()
        }
