"""How a dataset is dealt to clients: the result, and what a split must say."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from celm.base.registry import Configurable

Indices = NDArray[np.int64]


@dataclass(frozen=True)
class Dealing:
    """Who holds which training samples. Indices may repeat (a free-rider that copies a few samples)."""

    clients: Mapping[str, Indices]
    rare_classes: tuple[int, ...] = ()
    free_riders: tuple[str, ...] = ()
    relabelled: Mapping[str, Indices] = field(default_factory=dict)
    """Labels that replace the true ones of a client's samples, in the order of its indices."""
    behaviours: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """Client to an attack table such as `{"name": "copy_global", "strength": 0.0}`: free-riders that do not train."""

    def among(self, clients: Collection[str]) -> Dealing:
        """The same without anybody else."""
        return replace(
            self,
            clients={name: rows for name, rows in self.clients.items() if name in clients},
            free_riders=tuple(name for name in self.free_riders if name in clients),
            relabelled={name: labels for name, labels in self.relabelled.items() if name in clients},
            behaviours={name: table for name, table in self.behaviours.items() if name in clients},
        )

    def counts(self, labels: Indices, classes: int) -> dict[str, list[int]]:
        """Client to the number of samples of each class, by the labels it trains on."""
        return {
            name: np.bincount(self.relabelled.get(name, labels[rows]), minlength=classes).tolist()
            for name, rows in self.clients.items()
        }


@dataclass(frozen=True)
class Split(Configurable, ABC):
    """A way to deal. A subclass is a frozen dataclass; its fields are settings (`split.*`).

    The only randomness is `rng`, numpy's legacy generator, as the paper's authors used it, so that their
    tables can be matched.
    """

    @abstractmethod
    def deal(
        self,
        labels: Indices,
        classes: int,
        clients: int,
        rng: np.random.RandomState,
        owners: Sequence[str] | None = None,
    ) -> Dealing: ...


def named(parts: Sequence[Indices]) -> dict[str, Indices]:
    """client-0, client-1, ... for dealt parts, in order."""
    return {f"client-{i}": np.asarray(part, dtype=np.int64) for i, part in enumerate(parts)}
