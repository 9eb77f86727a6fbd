"""Functions shared by the splits: rows of each class, even division, equal sizes, and checks."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from celm.base.errors import CelmError
from celm.data.split import Indices


def invalid_setting(setting: str, problem: str, hint: str | None = None) -> CelmError:
    """Return the error for a setting that does not suit the data."""
    return CelmError(f"setting 'split.{setting}': {problem}", hint)


def check_clients(labels: Indices, clients: int, min_clients: int = 1, hint: str | None = None) -> None:
    """Check that there are enough clients for the split, and enough samples for the clients."""
    if clients < min_clients:
        raise invalid_setting("clients", f"at least {min_clients} needed, not {clients}", hint)
    if clients > len(labels):
        raise invalid_setting("clients", f"{clients} clients cannot share {len(labels)} training samples")


def check_nonempty(parts: Sequence[Indices], setting: str = "clients") -> None:
    """Check that every client has samples; an error names `setting` as the one to change."""
    for i, part in enumerate(parts):
        if not len(part):
            raise invalid_setting(setting, f"too few training samples: client-{i} would have none")


def shuffle_rows_by_class(labels: Indices, classes: int, rng: np.random.RandomState) -> list[Indices]:
    """Return the shuffled rows of each class."""
    return [rng.permutation(np.flatnonzero(labels == k)) for k in range(classes)]


def deal_evenly(rows_by_class: Sequence[Indices], clients: int) -> list[list[Indices]]:
    """Return one piece of each class for each client.

    The pieces of a class differ in size by at most one, and so do the totals of the clients. The remaining samples of
    a class go to the clients that follow those of the previous class.
    """
    client_pieces: list[list[Indices]] = [[] for _ in range(clients)]
    next_client = 0
    for label_rows in rows_by_class:
        base, remainder = divmod(len(label_rows), clients)
        sizes = [base + ((i - next_client) % clients < remainder) for i in range(clients)]
        next_client = (next_client + remainder) % clients
        for pieces, piece in zip(client_pieces, np.split(label_rows, np.cumsum(sizes)[:-1]), strict=True):
            pieces.append(piece)
    return client_pieces


def concat_shuffled(pieces: Sequence[Indices], rng: np.random.RandomState) -> Indices:
    """Return the pieces of a client as one shuffled array."""
    rows: Indices = np.concatenate([np.empty(0, dtype=np.int64), *pieces])
    return rng.permutation(rows)


def cut_to_smallest(parts: Sequence[Indices], rng: np.random.RandomState) -> list[Indices]:
    """Return all parts at the size of the smallest, by uniform choice without replacement."""
    size = min(len(part) for part in parts)
    return [rng.choice(part, size, replace=False) for part in parts]


def resolve_min_labels(min_labels: int | None, classes: int) -> int:
    """Return the number of labels of the client with the fewest: as set, or a fifth of the classes, rounded up.

    The default gives the authors' values: 2 of 10, 10 of 47 and 20 of 100.
    """
    if min_labels is not None and min_labels > classes:
        raise invalid_setting("min_labels", f"{min_labels} labels, but the dataset has {classes} classes")
    return -(-classes // 5) if min_labels is None else min_labels


def resolve_rare_classes(rare_classes: tuple[int, ...] | None, classes: int) -> tuple[int, ...]:
    """Return the classes that only Mavericks hold: as set, or the last 30 %, rounded, at least one.

    Of ten classes these are 7, 8 and 9.
    """
    if rare_classes is None:
        rare_classes = tuple(range(classes - max(1, round(0.3 * classes)), classes))
    outside = [k for k in rare_classes if not 0 <= k < classes]
    if outside:
        raise invalid_setting(
            "rare_classes", f"there is no class {outside[0]}; classes are 0 to {classes - 1}"
        )
    if len(set(rare_classes)) < len(rare_classes):
        raise invalid_setting("rare_classes", f"a class is listed twice in {list(rare_classes)}")
    if len(rare_classes) >= classes:
        raise invalid_setting("rare_classes", f"all {classes} classes are rare; at least one must be common")
    return tuple(sorted(rare_classes))
