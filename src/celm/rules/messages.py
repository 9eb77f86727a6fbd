"""Messages between server and clients, and the data of a round."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from torch import Tensor

from celm.core.loss_derivatives import LossDerivatives
from celm.models.averaging import weighted_mean
from celm.models.lazy_states import LazyStates
from celm.models.state_dict import StateDict

Aggregator = Callable[[Sequence[StateDict], Sequence[float]], StateDict]
"""Maps models and weights to one model."""
ValidateFn = Callable[[Sequence[StateDict]], list[Tensor]]
"""Maps models to their confusion counts `[K, K]` on the server's validation set."""


@dataclass(frozen=True)
class Validation:
    """The server's validation set as functions of models; itself a `ValidateFn`."""

    count: ValidateFn
    differentiate: Callable[[StateDict, StateDict | None], LossDerivatives]
    """Maps a model and a direction to the derivatives of the mean cross-entropy."""

    def __call__(self, models: Sequence[StateDict]) -> list[Tensor]:
        return self.count(models)


@dataclass(frozen=True)
class ServerMessage:
    """A model that the server sends to a client, with extra tensors for some methods."""

    model: StateDict
    extra_tensors: Mapping[str, Tensor] = field(default_factory=dict)
    model_to_evaluate: StateDict | None = None
    """A second model, which the client evaluates on its own held-out data."""


@dataclass(frozen=True)
class ClientUpdate:
    """A client's reply: its model, its number of steps, and the number of samples that it reports."""

    model: StateDict
    num_steps: int
    num_examples: int
    extra_tensors: Mapping[str, Tensor] = field(default_factory=dict)
    reported_accuracy: float | None = None
    """Reported accuracy of `ServerMessage.model_to_evaluate`."""

    def with_model(self, compute: Callable[[], StateDict]) -> ClientUpdate:
        """Return the update with another model."""
        return replace(self, model=compute())


class _ReadOnAccess:
    """The attribute `model` of an update: set to a function, whose result each access returns."""

    def __get__(self, update: Any, owner: type | None = None) -> StateDict:
        state: StateDict = update.__dict__["read_model"]()
        return state

    def __set__(self, update: Any, read_model: Callable[[], StateDict]) -> None:
        update.__dict__["read_model"] = read_model


class LazyUpdate(ClientUpdate):
    """An update whose first argument is a function: each access to `model` calls it, and nothing keeps the result."""

    model: Any = _ReadOnAccess()

    def with_model(self, compute: Callable[[], StateDict]) -> ClientUpdate:
        values = {name: value for name, value in self.__dict__.items() if name != "read_model"}
        return LazyUpdate(compute, **values)  # type: ignore[arg-type]


@dataclass(frozen=True)
class RoundData:
    """A round as the server sees it; `clients` are those with usable updates, in client order."""

    round_number: int
    global_model: StateDict
    """The global model at the start of the round."""
    messages: Mapping[str, ServerMessage]
    """The message to each selected client; with local heads its model is not the global model."""
    updates: Mapping[str, ClientUpdate]
    validate: ValidateFn | None = None
    """Evaluates models on held-out data; None if the federation has none."""
    average: Aggregator = weighted_mean
    """Combines models into one; robust aggregation replaces it."""

    @property
    def clients(self) -> list[str]:
        """Clients with usable updates."""
        return list(self.updates)

    def models(self, clients: Sequence[str]) -> Sequence[StateDict]:
        """Return the models of these clients; those of lazy updates are read on access."""
        updates = [self.updates[name] for name in clients]
        if any(isinstance(update, LazyUpdate) for update in updates):
            return LazyStates([partial(getattr, update, "model") for update in updates])
        return [update.model for update in updates]

    @property
    def selected(self) -> list[str]:
        """All selected clients, including those without a usable update."""
        return list(self.messages)
