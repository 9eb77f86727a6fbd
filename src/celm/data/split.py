"""The division of a dataset among clients: `Partition`, the result, and `Split`, the base class."""

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
class Partition:
    """The training samples of each client. Indices may repeat: a free-rider may copy a few samples."""

    clients: Mapping[str, Indices]
    rare_classes: tuple[int, ...] = ()
    free_riders: tuple[str, ...] = ()
    relabelled: Mapping[str, Indices] = field(default_factory=dict)
    """Client to labels that replace the true ones of its samples, in the order of its indices."""
    attacks: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """Client to the attack settings of a free-rider that does not train: `{"name": "copy_global", "strength": 0.0}`."""

    def restricted_to(self, clients: Collection[str]) -> Partition:
        """Return the partition of these clients only."""
        return replace(
            self,
            clients={name: rows for name, rows in self.clients.items() if name in clients},
            free_riders=tuple(name for name in self.free_riders if name in clients),
            relabelled={name: labels for name, labels in self.relabelled.items() if name in clients},
            attacks={name: table for name, table in self.attacks.items() if name in clients},
        )

    def counts(self, labels: Indices, classes: int) -> dict[str, list[int]]:
        """Return the number of samples of each client and class, by the labels that the client trains on."""
        return {
            name: np.bincount(self.relabelled.get(name, labels[rows]), minlength=classes).tolist()
            for name, rows in self.clients.items()
        }


@dataclass(frozen=True)
class Split(Configurable, ABC):
    """A way to divide a dataset. A subclass is a frozen dataclass; its fields are settings (`split.*`).

    All randomness comes from `rng`, NumPy's legacy generator. The paper's authors used it too, so their tables can be
    reproduced.
    """

    @abstractmethod
    def partition(
        self,
        labels: Indices,
        classes: int,
        clients: int,
        rng: np.random.RandomState,
        client_ids: Sequence[str] | None = None,
    ) -> Partition:
        """Divide samples with these labels among `clients` clients; `client_ids` are those of `Dataset`."""


def name_clients(parts: Sequence[Indices]) -> dict[str, Indices]:
    """Return the parts under the names client-0, client-1, ..., in order."""
    return {f"client-{i}": np.asarray(part, dtype=np.int64) for i, part in enumerate(parts)}
