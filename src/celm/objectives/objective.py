"""What an objective is: a loss on a batch, and what a client remembers between rounds.

An objective is a frozen dataclass whose fields are its settings. A new one overrides `loss`; one that changes
the descent itself overrides `gradients`; one that exchanges more than a model says so by `extras`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar, Generic, TypeVar

import torch
from torch import Tensor, nn

from celm.base.registry import Configurable
from celm.models.state import StateDict
from celm.objectives.by_hand import LinearChain, linear_chain
from celm.rules.exchange import Delivery, Round

Memory = TypeVar("Memory")
ServerState = TypeVar("ServerState")


@dataclass(frozen=True)
class Task(Generic[Memory]):
    """A client's local training in one round: its model, loaded with what was delivered, and what it knows."""

    module: nn.Module
    parameters: Sequence[nn.Parameter]
    head: str
    delivery: Delivery
    labels: Tensor
    """All labels of the client `[n]`."""
    classes: int
    lr: float
    memory: Memory | None
    """What the client kept from its last round; None in its first."""

    @cached_property
    def by_hand(self) -> LinearChain | None:
        """The model as a chain whose gradients need no autograd; None where it is no such chain."""
        return linear_chain(self.module, self.parameters)


@dataclass(frozen=True)
class Objective(Configurable, ABC, Generic[Memory]):
    memory_type: ClassVar[type | None] = None
    """The dataclass of what clients remember; None where they remember nothing."""

    def adapt(self, module: nn.Module, head: str) -> nn.Module:
        """The architecture this objective trains; most take it as it is."""
        return module

    @property
    def keeps_architecture(self) -> bool:
        """Whether `adapt` takes the model as it is; where not, its head is to be found anew."""
        return True

    def server(self, head: tuple[str, ...], trained: tuple[str, ...]) -> ServerPart[Any] | None:
        """The part at the server, given the names of the head's tensors and of all trained ones.

        The latter (`celm.models.anatomy.trained_keys`) are what a correction may move: a state dict also holds
        buffers, and a BatchNorm variance must not be corrected below zero. Most objectives have no such part.
        """
        return None

    def begin(self, task: Task[Memory]) -> Any:
        """What the loss needs during the whole round, made once."""
        return None

    @abstractmethod
    def loss(self, task: Task[Memory], context: Any, inputs: Tensor, labels: Tensor) -> Tensor:
        """The scalar to minimise on one batch."""

    def gradients(self, task: Task[Memory], context: Any, inputs: Tensor, labels: Tensor) -> Sequence[Tensor]:
        """The descent direction on one batch, one tensor a parameter; zero for one that the loss does not use."""
        loss = self.loss(task, context, inputs, labels)
        return torch.autograd.grad(loss, task.parameters, allow_unused=True, materialize_grads=True)

    def extras(self, task: Task[Memory], context: Any, steps: int) -> Mapping[str, Tensor]:
        """What the client sends besides its model; most send nothing."""
        return {}

    def remember(self, task: Task[Memory], context: Any, steps: int) -> Memory | None:
        """What the client keeps for its next round; most keep nothing."""
        return None


class ServerPart(ABC, Generic[ServerState]):
    """What an objective does at the server, for those that are not of the client alone."""

    state_type: ClassVar[type]

    @abstractmethod
    def init(self, model: StateDict) -> ServerState: ...

    def extras(self, state: ServerState) -> Mapping[str, Tensor]:
        """What every client is sent besides the model."""
        return {}

    def absorb(self, state: ServerState, round: Round, model: StateDict, clients: int) -> ServerState:
        """After merging: `model` is the new global model, `clients` the number of all clients."""
        return state

    def adjust(self, state: ServerState, model: StateDict) -> StateDict:
        """The global model that is kept and judged, from the merged one."""
        return model

    def depart(self, state: ServerState, model: StateDict) -> StateDict:
        """The model that clients start from, where it is not the one that is judged."""
        return model


AnyObjective = Objective[Any]
