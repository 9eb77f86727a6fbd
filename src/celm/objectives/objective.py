"""The interface of objectives: a loss on a batch, and a client's state between rounds.

An objective is a frozen dataclass whose fields are its settings. A new objective overrides `loss`. It overrides
`gradients` if it changes the descent direction, and `extra_tensors` if clients send more than a model.
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
from celm.models.state_dict import StateDict
from celm.objectives.relu_mlp_gradients import ReluMlp, as_relu_mlp
from celm.rules.messages import RoundData, ServerMessage

ClientState = TypeVar("ClientState")
HookState = TypeVar("HookState")


@dataclass(frozen=True)
class LocalTask(Generic[ClientState]):
    """A client's local training in one round; `module` is loaded with the received model."""

    module: nn.Module
    parameters: Sequence[nn.Parameter]
    """The trained parameters of `module`."""
    head: str
    """Name of the last linear layer."""
    message: ServerMessage
    labels: Tensor
    """All labels of the client `[n]`."""
    classes: int
    lr: float
    client_state: ClientState | None
    """State after the client's last round; None in its first."""

    @cached_property
    def relu_mlp(self) -> ReluMlp | None:
        """The model in a form whose gradients need no autograd; None if it has another architecture."""
        return as_relu_mlp(self.module, self.parameters)

    @cached_property
    def parameter_names(self) -> list[str]:
        """Names of `parameters`, in their order."""
        names = {id(parameter): name for name, parameter in self.module.named_parameters()}
        return [names[id(parameter)] for parameter in self.parameters]

    def copy_parameters(self) -> list[Tensor]:
        """Return copies of the parameters; in `start_round` these are the received ones."""
        return [parameter.detach().clone() for parameter in self.parameters]


@dataclass(frozen=True)
class Objective(Configurable, ABC, Generic[ClientState]):
    """Base of objectives: a frozen dataclass whose fields are settings (`objective.*`)."""

    client_state_type: ClassVar[type | None] = None
    """Dataclass of a client's state between rounds; None if clients keep no state."""

    def adapt_model(self, module: nn.Module, head: str) -> nn.Module:
        """Return the architecture that this objective trains; by default `module` itself."""
        return module

    @property
    def keeps_architecture(self) -> bool:
        """Whether `adapt_model` returns the model unchanged; if not, its head must be located again."""
        return True

    def server_hook(self, head: tuple[str, ...], trained: tuple[str, ...]) -> ServerHook[Any] | None:
        """Return the objective's part at the server; None if it has none.

        `head` are the names of the head's tensors. `trained` (`celm.models.heads.trained_keys`) are the tensors that
        a correction may change: a state dict also has buffers, and a BatchNorm variance must not go below zero.
        """
        return None

    def start_round(self, task: LocalTask[ClientState]) -> Any:
        """Return the `context` that all batches of the round share."""
        return None

    @abstractmethod
    def loss(self, task: LocalTask[ClientState], context: Any, inputs: Tensor, labels: Tensor) -> Tensor:
        """Return the scalar to minimise on one batch."""

    def gradients(
        self, task: LocalTask[ClientState], context: Any, inputs: Tensor, labels: Tensor
    ) -> Sequence[Tensor]:
        """Return the descent direction on one batch, one tensor per parameter; zero for an unused parameter."""
        loss = self.loss(task, context, inputs, labels)
        return torch.autograd.grad(loss, task.parameters, allow_unused=True, materialize_grads=True)

    def extra_tensors(self, task: LocalTask[ClientState], context: Any, steps: int) -> Mapping[str, Tensor]:
        """Return the tensors that the client sends besides its model; by default none."""
        return {}

    def next_client_state(self, task: LocalTask[ClientState], context: Any, steps: int) -> ClientState | None:
        """Return the client's state for its next round; by default None."""
        return None


class ServerHook(ABC, Generic[HookState]):
    """An objective's part at the server; the server step calls it after aggregation."""

    state_type: ClassVar[type]

    @abstractmethod
    def init(self, model: StateDict) -> HookState:
        """Return the state before the first round."""

    def extra_tensors(self, state: HookState) -> Mapping[str, Tensor]:
        """Return the tensors that the server sends to every client besides the model."""
        return {}

    def update_state(
        self, state: HookState, round: RoundData, model: StateDict, num_clients: int
    ) -> HookState:
        """Return the state after a round; `model` is the aggregated one, `num_clients` counts all clients."""
        return state

    def postprocess(self, state: HookState, model: StateDict) -> StateDict:
        """Return the new global model, made from the aggregated one."""
        return model

    def broadcast_model(self, state: HookState, model: StateDict) -> StateDict:
        """Return the model that clients start from; by default the global model."""
        return model


AnyObjective = Objective[Any]
