"""Pure Label Skew: clients differ in the number of labels, not in the number of samples."""

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
    cut_to_smallest,
    invalid_setting,
    resolve_min_labels,
)


@dataclass(frozen=True)
class PureLabelSkew(Split):
    """Pure Label Skew: more labels from client to client, equal samples.

    The number of labels grows; the number of samples is about equal.

    With m = `min_labels`, a = `min_samples` and b = `max_samples` of a label, client i = 0 .. N-1 in turn

        draws      m_i = m + i floor((K - m) / (N - 1))     distinct labels, in random order
        requests   d_i = a + (N - i) floor((b - a) / N)     samples of each
        takes      min(d_i, remaining) of one label after the other, skipping labels with fewer than a remaining,
                   until it has more than m b

    Finally all clients are cut to the size of the smallest, at random. Five clients and ten classes get 2, 3, 4, 5 and
    9 labels: the stopping rule determines this, not m_i. A single client draws m labels.

    `min_labels` is by default a fifth of the classes, rounded up (2 of 10, 10 of 47, 20 of 100). `max_samples` and
    `min_samples` are by default a half and a sixtieth of the smallest class, the authors' 3000 and 100 of FashionMNIST.
    For CIFAR-10 and EMNIST the authors took 2000 and 100, for CIFAR-100 400 and 100; a dataset's defaults set these.
    With more than the authors' five clients the half becomes 5 / (2 N) of the smallest class. This is ours: otherwise
    the classes would be used up before the last clients' turn.

    A class may have no holder, which bounds the accuracy of any model. With `cover`, such a class is given to the
    client with the most labels. That client gives up as many other samples, a proportional part of each of its
    labels. So sizes stay equal and no class loses its last holder.
    """

    min_labels: Annotated[int, Field(gt=0)] | None = None
    """Labels of the first client; by default a fifth of the classes."""
    max_samples: Annotated[int, Field(gt=0)] | None = None
    """Most samples of a label that a client takes; by default half of the smallest class."""
    min_samples: Annotated[int, Field(gt=0)] | None = None
    """A label with fewer remaining samples is skipped; by default a sixtieth of the smallest class."""
    cover: bool = False
    """Whether every class must have a holder."""

    def partition(
        self,
        labels: Indices,
        classes: int,
        clients: int,
        rng: np.random.RandomState,
        client_ids: Sequence[str] | None = None,
    ) -> Partition:
        check_clients(labels, clients)
        min_labels = resolve_min_labels(self.min_labels, classes)
        min_samples, max_samples = self._samples_per_label(labels, clients)
        label_step = (classes - min_labels) // max(1, clients - 1)
        sample_step = (max_samples - min_samples) // clients
        remaining = [np.flatnonzero(labels == k) for k in range(classes)]
        parts = []
        for i in range(clients):
            quota = min_samples + (clients - i) * sample_step
            pieces: list[Indices] = [np.empty(0, dtype=np.int64)]
            for k in rng.choice(classes, min_labels + i * label_step, replace=False):
                if len(remaining[k]) < min_samples:
                    continue
                picks = rng.choice(len(remaining[k]), min(quota, len(remaining[k])), replace=False)
                pieces.append(remaining[k][picks])
                remaining[k] = np.delete(remaining[k], picks)
                if sum(map(len, pieces)) > min_labels * max_samples:
                    break
            parts.append(np.concatenate(pieces))
        check_nonempty(parts, "max_samples")
        parts = cut_to_smallest(parts, rng)
        if self.cover:
            parts = _cover_missing_classes(parts, labels, classes, rng)
        return Partition(name_clients(parts))

    def _samples_per_label(self, labels: Indices, clients: int) -> tuple[int, int]:
        """Return the fewest and the most samples that a client takes of a label."""
        sizes = np.bincount(labels)
        smallest = int(sizes[sizes > 0].min())
        max_samples, min_samples = self.max_samples, self.min_samples
        if max_samples is None:
            max_samples = max(1, 5 * smallest // (2 * max(5, clients)))
        if min_samples is None:
            min_samples = max(1, min(max_samples, smallest // 60))
        if min_samples > max_samples:
            raise invalid_setting(
                "min_samples", f"{min_samples} is more than split.max_samples, which is {max_samples}"
            )
        return min_samples, max_samples


def _cover_missing_classes(
    parts: list[Indices], labels: Indices, classes: int, rng: np.random.RandomState
) -> list[Indices]:
    """Return the parts with every class of the data in at least one of them."""
    parts = list(parts)
    for k in np.setdiff1d(labels, labels[np.concatenate(parts)]):
        counts = np.stack([np.bincount(labels[part], minlength=classes) for part in parts])
        total = counts.sum(axis=0)
        removable = (counts > 0) & (total > 1)  # the client can give up a sample and the class keeps a holder
        candidates = np.flatnonzero(removable.any(axis=1))
        if not len(candidates):
            raise invalid_setting("cover", "too few samples for every class to have a holder")
        receiver = max(candidates, key=lambda i: (np.count_nonzero(counts[i]), i))
        class_indices = np.flatnonzero(labels == k)
        size = len(parts[receiver])
        num_added = min(size // (np.count_nonzero(counts[receiver]) + 1), len(class_indices))
        removed_counts = counts[receiver] * num_added // size
        if not removed_counts.any():
            removed_counts[np.where(removable[receiver], total, 0).argmax()] = 1
        kept_rows = []
        for c in np.flatnonzero(counts[receiver]):
            label_rows = parts[receiver][labels[parts[receiver]] == c]
            kept_rows.append(rng.choice(label_rows, len(label_rows) - removed_counts[c], replace=False))
        added_rows = rng.choice(class_indices, removed_counts.sum(), replace=False)
        parts[receiver] = rng.permutation(np.concatenate([*kept_rows, added_rows]))
    return parts
