"""What an objective is: a loss on a batch, and what a client remembers between rounds.

An objective is a frozen dataclass whose fields are its settings. A new one overrides `loss`; one that changes
the descent itself overrides `gradients`; one that exchanges more than a model says so by `extras`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Generic, TypeVar

import torch
from torch import Tensor, nn

from celm.base.registry import Configurable
from celm.rules.exchange import Delivery

Memory = TypeVar("Memory")


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


@dataclass(frozen=True)
class Objective(Configurable, ABC, Generic[Memory]):
    memory_type: ClassVar[type | None] = None
    """The dataclass of what clients remember; None where they remember nothing."""

    def begin(self, task: Task[Memory]) -> Any:
        """What the loss needs during the whole round, made once."""
        return None

    @abstractmethod
    def loss(self, task: Task[Memory], context: Any, inputs: Tensor, labels: Tensor) -> Tensor:
        """The scalar to minimise on one batch."""

    def gradients(self, task: Task[Memory], context: Any, inputs: Tensor, labels: Tensor) -> Sequence[Tensor]:
        """The descent direction on one batch, one tensor a parameter."""
        return torch.autograd.grad(self.loss(task, context, inputs, labels), task.parameters)

    def extras(self, task: Task[Memory], context: Any, steps: int) -> Mapping[str, Tensor]:
        """What the client sends besides its model; most send nothing."""
        return {}

    def remember(self, task: Task[Memory], context: Any, steps: int) -> Memory | None:
        """What the client keeps for its next round; most keep nothing."""
        return None


AnyObjective = Objective[Any]
