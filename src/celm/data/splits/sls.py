"""Step Label Skew: clients differ in the number of labels and of samples."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Literal

import numpy as np
from pydantic import Field

from celm.data.split import Indices, Partition, Split, name_clients
from celm.data.splits.helpers import (
    check_clients,
    check_nonempty,
    concat_shuffled,
    resolve_min_labels,
    shuffle_rows_by_class,
)


@dataclass(frozen=True)
class StepLabelSkew(Split):
    """Step Label Skew: more labels and samples from client to client.

    With m = `min_labels` (by default a fifth of the classes, rounded up), client i holds the first

        m_i = m + floor(i (K - m) / (N - 1))

    classes of one order of the classes, and the holders of a class share it equally. Five clients and ten classes: 2,
    4, 6, 8 and 10 labels. The last client, also a single one, holds all classes, so every sample is used. The order
    is drawn per seed; with `order = "identity"` it is that of the data.

    With `nested = false` each client draws its own labels, m + i floor((K - m) / (N - 1)) of them, as in code that the
    authors published later. Then a class may have no holder, and `order` is ignored.
    """

    min_labels: Annotated[int, Field(gt=0)] | None = None
    """Labels of the first client; by default a fifth of the classes."""
    order: Literal["random", "identity"] = "random"
    """Order of the classes: drawn once, or that of the data."""
    nested: bool = True
    """Each client holds the labels of the clients before it; otherwise every client draws its own."""

    def partition(
        self,
        labels: Indices,
        classes: int,
        clients: int,
        rng: np.random.RandomState,
        client_ids: Sequence[str] | None = None,
    ) -> Partition:
        check_clients(labels, clients)
        label_sets = self._draw_label_sets(classes, clients, rng)
        client_pieces: list[list[Indices]] = [[] for _ in range(clients)]
        for k, label_rows in enumerate(shuffle_rows_by_class(labels, classes, rng)):
            holders = [i for i in range(clients) if k in label_sets[i]]
            pieces = np.array_split(label_rows, len(holders)) if holders else []
            for i, piece in zip(holders, pieces, strict=True):
                client_pieces[i].append(piece)
        parts = [concat_shuffled(pieces, rng) for pieces in client_pieces]
        check_nonempty(parts)
        return Partition(name_clients(parts))

    def _draw_label_sets(self, classes: int, clients: int, rng: np.random.RandomState) -> list[set[int]]:
        min_labels = resolve_min_labels(self.min_labels, classes)
        extra_labels, steps = classes - min_labels, clients - 1
        if not self.nested:
            label_counts = [min_labels + i * (extra_labels // max(1, steps)) for i in range(clients)]
            return [set(rng.choice(classes, count, replace=False).tolist()) for count in label_counts]
        label_counts = (
            [min_labels + i * extra_labels // steps for i in range(clients)] if steps else [classes]
        )
        order = rng.permutation(classes) if self.order == "random" else np.arange(classes)
        return [set(order[:count].tolist()) for count in label_counts]
