"""A client that takes more than it brings."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import numpy as np
from pydantic import Field

from celm.data.split import Dealing, Indices, Split, named
from celm.data.splits.parts import class_rows, evenly, gathered, invalid, require, require_full

Kind = Literal["few_labels", "repeated_samples", "random_labels", "copy_global", "noise", "replay_delta"]

# Free-riders that do not train on their data: what they do instead, as an attack on their upload.
BEHAVIOURS: dict[str, dict[str, Any]] = {
    "copy_global": {"name": "copy_global", "strength": 0.0},
    "noise": {"name": "copy_global", "strength": 1.0},
    "replay_delta": {"name": "replay_delta"},
}


@dataclass(frozen=True)
class FreeRider(Split):
    """Free-rider: the first client brings nothing that the others lack; they hold equal parts of every class.

    The paper only says that a free-rider "mainly carries labels that are globally well-represented"; these
    definitions are ours. The data are dealt to all clients in equal parts of every class. Then the
    free-rider's part, and no other, is changed, so the honest clients' data are the same for every kind:

    - `few_labels`: it keeps the samples of `labels` classes, drawn among those that every client holds;
      the rest of its part is left out.
    - `repeated_samples`: `repeats_of` samples drawn from its part with replacement, repeated up to the mean
      size of the other clients.
    - `random_labels`: its part, with uniformly random labels.
    - `copy_global`, `noise`, `replay_delta`: its part as it is, but it does not train on it: it returns the
      global model as it came, with noise on top, or moved as the global model moved last.
    """

    kind: Kind = "few_labels"
    """How the first client rides free."""
    labels: Annotated[int, Field(gt=0)] = 2
    """Labels it holds, with kind few_labels."""
    repeats_of: Annotated[int, Field(gt=0)] = 10
    """Samples it repeats, with kind repeated_samples."""

    def deal(
        self,
        labels: Indices,
        classes: int,
        clients: int,
        rng: np.random.RandomState,
        owners: Sequence[str] | None = None,
    ) -> Dealing:
        require(labels, clients, at_least=2, because="a free-rider and another client")
        hands = evenly(class_rows(labels, classes, rng), clients)
        parts = [gathered(hand, rng) for hand in hands]
        require_full(parts)
        return self.ride(parts, (), labels, classes, rng)

    def ride(
        self,
        parts: list[Indices],
        rare_classes: tuple[int, ...],
        labels: Indices,
        classes: int,
        rng: np.random.RandomState,
    ) -> Dealing:
        """The dealing after the first client has turned its part into a free-rider's."""
        mine, others = parts[0], parts[1:]
        relabelled = {}
        if self.kind == "few_labels":
            sharers = parts[:-1] if rare_classes else parts
            mine = mine[np.isin(labels[mine], self.few(held_by_all(sharers, labels), rng))]
        elif self.kind == "repeated_samples":
            mean = round(sum(map(len, others)) / len(others))
            mine = np.resize(rng.choice(mine, self.repeats_of), mean)
        elif self.kind == "random_labels":
            relabelled["client-0"] = rng.randint(classes, size=len(mine), dtype=np.int64)
        return Dealing(
            named([mine, *others]),
            rare_classes=rare_classes,
            free_riders=("client-0",),
            relabelled=relabelled,
            behaviours={"client-0": dict(BEHAVIOURS[self.kind])} if self.kind in BEHAVIOURS else {},
        )

    def few(self, held: Collection[int], rng: np.random.RandomState) -> Indices:
        if self.labels > len(held):
            raise invalid(
                "labels", f"{self.labels} labels, but only {len(held)} classes are held by every client"
            )
        chosen: Indices = rng.choice(sorted(held), self.labels, replace=False)
        return chosen


def held_by_all(parts: Sequence[Indices], labels: Indices) -> set[int]:
    return set.intersection(*(set(labels[part].tolist()) for part in parts))
