"""Step Label Skew: clients differ in the number of their labels and of their samples."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Literal

import numpy as np
from pydantic import Field

from celm.data.split import Dealing, Indices, Split, named
from celm.data.splits.parts import class_rows, fewest_labels, gathered, require, require_full


@dataclass(frozen=True)
class StepLabelSkew(Split):
    """Step Label Skew: ever more labels and samples from client to client.

    With m = `min_labels` (by default a fifth of the classes, rounded up), client i holds the first

        m_i = m + floor(i (K - m) / (N - 1))

    classes of one order of the classes, and each class is shared equally by its holders. Five clients and ten
    classes: 2, 4, 6, 8 and 10 labels. The last client (a single one too) holds all classes, so every sample
    is dealt. The order is drawn per seed, or with `order = "identity"` that of the data.

    With `nested = false` each client draws its labels for itself, m + i floor((K - m) / (N - 1)) of them, as
    in code that the authors published later; then a class may be without a holder, and `order` means nothing.
    """

    min_labels: Annotated[int, Field(gt=0)] | None = None
    """Labels of the first client; by default a fifth of the classes."""
    order: Literal["random", "identity"] = "random"
    """Order of the classes: drawn once, or as they are."""
    nested: bool = True
    """Each client's labels include those before it; else every client draws its own."""

    def deal(
        self,
        labels: Indices,
        classes: int,
        clients: int,
        rng: np.random.RandomState,
        owners: Sequence[str] | None = None,
    ) -> Dealing:
        require(labels, clients)
        held = self.labels_held(classes, clients, rng)
        hands: list[list[Indices]] = [[] for _ in range(clients)]
        for k, of_class in enumerate(class_rows(labels, classes, rng)):
            holders = [i for i in range(clients) if k in held[i]]
            pieces = np.array_split(of_class, len(holders)) if holders else []
            for i, piece in zip(holders, pieces, strict=True):
                hands[i].append(piece)
        parts = [gathered(hand, rng) for hand in hands]
        require_full(parts)
        return Dealing(named(parts))

    def labels_held(self, classes: int, clients: int, rng: np.random.RandomState) -> list[set[int]]:
        fewest = fewest_labels(self.min_labels, classes)
        more, steps = classes - fewest, clients - 1
        if not self.nested:
            numbers = [fewest + i * (more // max(1, steps)) for i in range(clients)]
            return [set(rng.choice(classes, number, replace=False).tolist()) for number in numbers]
        numbers = [fewest + i * more // steps for i in range(clients)] if steps else [classes]
        order = rng.permutation(classes) if self.order == "random" else np.arange(classes)
        return [set(order[:number].tolist()) for number in numbers]
