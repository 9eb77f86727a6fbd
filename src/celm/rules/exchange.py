"""What travels between server and clients in a round."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from torch import Tensor

from celm.models.averaging import weighted_mean
from celm.models.state import StateDict

Average = Callable[[Sequence[StateDict], Sequence[float]], StateDict]
"""Models and weights to one model."""
Validate = Callable[[Sequence[StateDict]], list[Tensor]]
"""Models to their confusion counts `[K, K]` on the server's validation set."""


@dataclass(frozen=True)
class Delivery:
    """What the server sends a client: a model, and what only some methods need."""

    model: StateDict
    extras: Mapping[str, Tensor] = field(default_factory=dict)
    examine: StateDict | None = None
    """A second model that the client is asked to judge on data of its own that it does not train on."""


@dataclass(frozen=True)
class Update:
    """What a client sends back: its model, the steps it took, the number of samples it says it has."""

    model: StateDict
    steps: int
    size: int
    extras: Mapping[str, Tensor] = field(default_factory=dict)
    examined: float | None = None
    """The accuracy it reports for the model it was asked to judge."""


@dataclass(frozen=True)
class Round:
    """A round as the server sees it; `clients` are those whose updates can be used, in client order."""

    number: int
    lr: float
    start: StateDict
    """The global model at the start of the round."""
    delivered: Mapping[str, Delivery]
    """What each client that was asked started from; with local heads this is not the global model."""
    updates: Mapping[str, Update]
    validate: Validate | None = None
    """Judges models on held-out data; None where the federation has none."""
    average: Average = weighted_mean
    """How models become one; robust aggregation puts something else here."""
    own: Mapping[str, StateDict] = field(default_factory=dict)
    """What attackers really trained, whatever they sent; only a simulation knows."""

    @property
    def clients(self) -> list[str]:
        return list(self.updates)

    @property
    def asked(self) -> list[str]:
        """Also those who sent nothing that can be used."""
        return list(self.delivered)

    def held(self, client: str) -> StateDict:
        """What the client has in hand after training, whatever it sent: where it goes on from in rules that let it."""
        return self.own.get(client, self.updates[client].model)
