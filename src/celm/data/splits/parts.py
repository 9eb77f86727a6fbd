"""What the splits share: rows of each class, even dealing, equal sizes, and the checks."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from celm.base.errors import CelmError
from celm.data.split import Indices


def invalid(setting: str, problem: str, hint: str | None = None) -> CelmError:
    """The error for a setting that does not fit the data."""
    return CelmError(f"setting 'split.{setting}': {problem}", hint)


def require(labels: Indices, clients: int, at_least: int = 1, because: str | None = None) -> None:
    """Enough clients for the split, enough samples for the clients."""
    if clients < at_least:
        raise invalid("clients", f"at least {at_least} needed, not {clients}", because)
    if clients > len(labels):
        raise invalid("clients", f"{clients} clients cannot share {len(labels)} training samples")


def require_full(parts: Sequence[Indices], setting: str = "clients") -> None:
    """No client may be left without samples; `setting` is the one to change."""
    for i, part in enumerate(parts):
        if not len(part):
            raise invalid(setting, f"too few training samples: client-{i} would have none")


def class_rows(labels: Indices, classes: int, rng: np.random.RandomState) -> list[Indices]:
    """The rows of each class, shuffled, one class after the other."""
    return [rng.permutation(np.flatnonzero(labels == k)) for k in range(classes)]


def evenly(rows: Sequence[Indices], clients: int) -> list[list[Indices]]:
    """Client to one piece of each class; pieces of a class, and totals over classes, differ by at most one.

    The odd samples of a class go to the clients next in turn after those of the class before.
    """
    hands: list[list[Indices]] = [[] for _ in range(clients)]
    turn = 0
    for of_class in rows:
        base, odd = divmod(len(of_class), clients)
        sizes = [base + ((i - turn) % clients < odd) for i in range(clients)]
        turn = (turn + odd) % clients
        for hand, piece in zip(hands, np.split(of_class, np.cumsum(sizes)[:-1]), strict=True):
            hand.append(piece)
    return hands


def gathered(pieces: Sequence[Indices], rng: np.random.RandomState) -> Indices:
    """All pieces of a client in one shuffled array."""
    rows: Indices = np.concatenate([np.empty(0, dtype=np.int64), *pieces])
    return rng.permutation(rows)


def equal_sizes(parts: Sequence[Indices], rng: np.random.RandomState) -> list[Indices]:
    """Every part cut to the smallest one's size by uniform choice without replacement."""
    size = min(len(part) for part in parts)
    return [rng.choice(part, size, replace=False) for part in parts]


def fewest_labels(min_labels: int | None, classes: int) -> int:
    """Labels of the client with the fewest: as set, or a fifth of the classes rounded up.

    The default is the authors' 2 of 10, 10 of 47 and 20 of 100.
    """
    if min_labels is not None and min_labels > classes:
        raise invalid("min_labels", f"{min_labels} labels, but the dataset has {classes} classes")
    return -(-classes // 5) if min_labels is None else min_labels


def rare_or_last(rare_classes: tuple[int, ...] | None, classes: int) -> tuple[int, ...]:
    """Classes held by Mavericks only: as set, or the last 30 % (rounded, at least one): 7, 8, 9 of 10."""
    if rare_classes is None:
        rare_classes = tuple(range(classes - max(1, round(0.3 * classes)), classes))
    outside = [k for k in rare_classes if not 0 <= k < classes]
    if outside:
        raise invalid("rare_classes", f"no class {outside[0]}, the classes are 0 to {classes - 1}")
    if len(set(rare_classes)) < len(rare_classes):
        raise invalid("rare_classes", f"a class is named twice in {list(rare_classes)}")
    if len(rare_classes) >= classes:
        raise invalid("rare_classes", f"all {classes} classes are rare, no class is left for the others")
    return tuple(sorted(rare_classes))
