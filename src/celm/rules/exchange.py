"""What travels between server and clients in a round."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from torch import Tensor

from celm.models.state import StateDict


@dataclass(frozen=True)
class Delivery:
    """What the server sends a client: a model, and extras that only some methods need."""

    model: StateDict
    extras: Mapping[str, Tensor] = field(default_factory=dict)


@dataclass(frozen=True)
class Update:
    """What a client sends back: its model, the steps it took, the number of samples it says it has."""

    model: StateDict
    steps: int
    size: int
    extras: Mapping[str, Tensor] = field(default_factory=dict)


@dataclass(frozen=True)
class Round:
    """A round as the server sees it; `clients` are those present, in client order."""

    number: int
    lr: float
    start: StateDict
    """The global model at the start of the round."""
    delivered: Mapping[str, Delivery]
    """What each client started from; with local heads this is not the global model."""
    updates: Mapping[str, Update]

    @property
    def clients(self) -> list[str]:
        return list(self.updates)
