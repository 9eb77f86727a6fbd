"""A free-rider and a Maverick in one federation."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

import numpy as np
from pydantic import Field

from celm.data.split import Dealing, Indices
from celm.data.splits.free_rider import FreeRider
from celm.data.splits.parts import class_rows, evenly, gathered, rare_or_last, require, require_full


@dataclass(frozen=True)
class FreeRiderAndMaverick(FreeRider):
    """Free-rider and Maverick: the first client is a free-rider, the last alone holds the rare classes.

    Ours, like `free_rider`. The last client holds all samples of `rare_classes` (by default the last 30 % of
    the classes, as in `maverick`) and nothing else; the others hold equal parts of every other class. Then
    the free-rider's part is changed as in `free_rider`, with the same settings; its few labels are common
    ones. A detector should flag the first client and spare the last, though both have few labels.
    """

    rare_classes: Annotated[tuple[int, ...], Field(min_length=1)] | None = None
    """Classes of the Maverick alone; by default the last 30 %."""

    def deal(
        self,
        labels: Indices,
        classes: int,
        clients: int,
        rng: np.random.RandomState,
        owners: Sequence[str] | None = None,
    ) -> Dealing:
        require(labels, clients, at_least=3, because="a free-rider, a Maverick and another client")
        rare = rare_or_last(self.rare_classes, classes)
        rows = class_rows(labels, classes, rng)
        hands = evenly([rows[k] for k in range(classes) if k not in rare], clients - 1)
        parts = [gathered(hand, rng) for hand in [*hands, [rows[k] for k in rare]]]
        require_full(parts)
        return self.ride(parts, rare, labels, classes, rng)
