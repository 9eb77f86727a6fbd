"""A free-rider: a client that contributes nothing that the others lack."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import numpy as np
from pydantic import Field

from celm.data.split import Indices, Partition, Split, name_clients
from celm.data.splits.helpers import (
    check_clients,
    check_nonempty,
    concat_shuffled,
    deal_evenly,
    invalid_setting,
    shuffle_rows_by_class,
)

FreeRiderKind = Literal[
    "few_labels", "repeated_samples", "random_labels", "copy_global", "noise", "replay_delta"
]

# Kinds of free-riders that do not train: the attack on their upload.
_UPLOAD_ATTACKS: dict[str, dict[str, Any]] = {
    "copy_global": {"name": "copy_global", "strength": 0.0},
    "noise": {"name": "copy_global", "strength": 1.0},
    "replay_delta": {"name": "replay_delta"},
}


@dataclass(frozen=True)
class FreeRider(Split):
    """Free-rider: the first client adds nothing to what others hold.

    The other clients hold equal parts of every class.

    The paper only says that a free-rider "mainly carries labels that are globally well-represented"; these definitions
    are ours. All clients first get equal parts of every class. Then only the free-rider's part is changed, so the
    honest clients' data are the same for every kind:

    - `few_labels`: the free-rider keeps the samples of `labels` classes, drawn among those that every client holds.
      The rest of its part is not used.
    - `repeated_samples`: `repeats_of` samples are drawn from its part with replacement, and repeated up to the mean
      size of the other clients.
    - `random_labels`: its part has uniformly random labels.
    - `copy_global`, `noise`, `replay_delta`: its part is unchanged, but it does not train. It returns the global model
      unchanged, with added noise, or plus the last change of the global model.
    """

    kind: FreeRiderKind = "few_labels"
    """Behaviour of the free-rider, which is the first client."""
    labels: Annotated[int, Field(gt=0)] = 2
    """Number of classes it holds, with kind few_labels."""
    repeats_of: Annotated[int, Field(gt=0)] = 10
    """Number of samples it repeats, with kind repeated_samples."""

    def partition(
        self,
        labels: Indices,
        classes: int,
        clients: int,
        rng: np.random.RandomState,
        client_ids: Sequence[str] | None = None,
    ) -> Partition:
        check_clients(labels, clients, min_clients=2, hint="a free-rider and another client")
        client_pieces = deal_evenly(shuffle_rows_by_class(labels, classes, rng), clients)
        parts = [concat_shuffled(pieces, rng) for pieces in client_pieces]
        check_nonempty(parts)
        return self.make_partition(parts, (), labels, classes, rng)

    def make_partition(
        self,
        parts: list[Indices],
        rare_classes: tuple[int, ...],
        labels: Indices,
        classes: int,
        rng: np.random.RandomState,
    ) -> Partition:
        """Return the partition after changing the first client's part to that of a free-rider."""
        rider_rows, other_parts = parts[0], parts[1:]
        relabelled = {}
        if self.kind == "few_labels":
            sharing_parts = parts[:-1] if rare_classes else parts
            rider_labels = self._draw_labels(_find_common_classes(sharing_parts, labels), rng)
            rider_rows = rider_rows[np.isin(labels[rider_rows], rider_labels)]
        elif self.kind == "repeated_samples":
            mean_size = round(sum(map(len, other_parts)) / len(other_parts))
            rider_rows = np.resize(rng.choice(rider_rows, self.repeats_of), mean_size)
        elif self.kind == "random_labels":
            relabelled["client-0"] = rng.randint(classes, size=len(rider_rows), dtype=np.int64)
        return Partition(
            name_clients([rider_rows, *other_parts]),
            rare_classes=rare_classes,
            free_riders=("client-0",),
            relabelled=relabelled,
            attacks={"client-0": dict(_UPLOAD_ATTACKS[self.kind])} if self.kind in _UPLOAD_ATTACKS else {},
        )

    def _draw_labels(self, common_classes: Collection[int], rng: np.random.RandomState) -> Indices:
        if self.labels > len(common_classes):
            raise invalid_setting(
                "labels",
                f"{self.labels} labels, but only {len(common_classes)} classes are held by every client",
            )
        drawn_labels: Indices = rng.choice(sorted(common_classes), self.labels, replace=False)
        return drawn_labels


def _find_common_classes(parts: Sequence[Indices], labels: Indices) -> set[int]:
    return set.intersection(*(set(labels[part].tolist()) for part in parts))
