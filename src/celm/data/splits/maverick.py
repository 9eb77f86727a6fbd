"""Clients that alone hold rare classes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

import numpy as np
from pydantic import Field

from celm.data.split import Dealing, Indices, Split, named
from celm.data.splits.parts import (
    class_rows,
    equal_sizes,
    evenly,
    gathered,
    invalid,
    rare_or_last,
    require,
    require_full,
)


@dataclass(frozen=True)
class Maverick(Split):
    """Maverick: the first client alone holds the rare classes, the others share the rest equally.

    `rare_classes` are by default the last 30 % of the classes: 7, 8 and 9 of ten. With r of K classes rare
    and the rest shared by N - 1 clients, the ideal CELM weights are r/K and (K - r) / (K (N - 1)).

    - `mavericks`: so many clients, the first ones, share the rare classes equally.
    - `include_common`: Mavericks also hold an equal part of the other classes.
    - `leak`: this fraction of each rare class goes to the other clients, in equal parts.
    - `equalize`: every client is cut to the smallest one's size at random. Otherwise every sample is dealt.
    """

    rare_classes: Annotated[tuple[int, ...], Field(min_length=1)] | None = None
    """Classes of the Maverick alone; by default the last 30 %."""
    mavericks: Annotated[int, Field(gt=0)] = 1
    """How many first clients share the rare classes."""
    include_common: bool = False
    """Whether a Maverick holds its part of the other classes too."""
    leak: Annotated[float, Field(ge=0, le=1)] = 0.0
    """Fraction of the rare samples that goes to the others."""
    equalize: bool = False
    """Cut every client to the smallest one's size."""

    def deal(
        self,
        labels: Indices,
        classes: int,
        clients: int,
        rng: np.random.RandomState,
        owners: Sequence[str] | None = None,
    ) -> Dealing:
        require(labels, clients, at_least=2, because="a Maverick and another client")
        if self.mavericks >= clients:
            raise invalid("mavericks", f"{self.mavericks} of {clients} clients leaves no other client")
        rare = rare_or_last(self.rare_classes, classes)
        rows = class_rows(labels, classes, rng)
        common = [rows[k] for k in range(classes) if k not in rare]
        leaked = [int(self.leak * len(rows[k])) for k in rare]
        kept = [rows[k][count:] for k, count in zip(rare, leaked, strict=True)]
        others = clients - self.mavericks

        hands = [*evenly(kept, self.mavericks), *([] for _ in range(others))]
        sharers = range(0 if self.include_common else self.mavericks, clients)
        for i, pieces in zip(sharers, evenly(common, len(sharers)), strict=True):
            hands[i] += pieces
        given = [rows[k][:count] for k, count in zip(rare, leaked, strict=True)]
        for hand, pieces in zip(hands[self.mavericks :], evenly(given, others), strict=True):
            hand += pieces

        parts = [gathered(hand, rng) for hand in hands]
        require_full(parts, "leak" if self.leak == 1 else "clients")
        return Dealing(named(equal_sizes(parts, rng) if self.equalize else parts), rare_classes=rare)
