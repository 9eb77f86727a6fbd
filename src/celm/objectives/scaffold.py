"""SCAFFOLD: control variates that correct the drift of clients.

    client, each step:  w <- w - η (g - c_i + c)
    client, at the end: c_i' = c_i - c + (w_g - w_i) / (τ η)        option II; τ steps at the round's learning rate η
    server:             c <- c + (1/N) Σ_{i present} (c_i' - c_i)    N counts all clients, present or not

Karimireddy, Kale, Mohri, Reddi, Stich, Suresh, "SCAFFOLD: stochastic controlled averaging for federated
learning", ICML 2020. All controls start at zero. The server sends c and each client returns c_i' - c_i, each as
large as the trained parameters. The rule aggregates the models. SCAFFOLD is meant for SGD without momentum: with
momentum 0.9, (w_g - w_i) / (τ η) is about ten times a mean of gradients.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor
from torch.nn import functional as F

from celm.core.model_stack import extract_logits
from celm.models.state_dict import StateDict, describe_mismatch
from celm.models.state_ops import add_scaled
from celm.objectives.objective import LocalTask, Objective, ServerHook
from celm.objectives.training_ops import add_scaled_lists
from celm.rules.messages import RoundData

_CONTROL_PREFIX = "control/"
"""Precedes a parameter's name in the extra tensors of messages and updates."""


@dataclass(frozen=True)
class ScaffoldState:
    """Control variate: c_i of a client or c of the server; parameter name to tensor."""

    control_by_name: Mapping[str, Tensor]


@dataclass(frozen=True)
class _RoundCorrection:
    """A client's received parameters, its control, the server's control, and c - c_i."""

    start: list[Tensor]
    client_control: list[Tensor]
    server_control: list[Tensor]
    drift: list[Tensor]


@dataclass(frozen=True)
class Scaffold(Objective[ScaffoldState]):
    """Cross-entropy with gradients corrected by control variates."""

    client_state_type: ClassVar[type | None] = ScaffoldState

    def server_hook(self, head: tuple[str, ...], trained: tuple[str, ...]) -> ServerHook[ScaffoldState]:
        return ServerControl(trained)

    def start_round(self, task: LocalTask[ScaffoldState]) -> _RoundCorrection:
        client_control = _tensors_by_parameter(
            task, {} if task.client_state is None else task.client_state.control_by_name
        )
        received = task.message.extra_tensors
        server_control = _tensors_by_parameter(
            task,
            {
                key[len(_CONTROL_PREFIX) :]: received[key]
                for key in received
                if key.startswith(_CONTROL_PREFIX)
            },
        )
        return _RoundCorrection(
            task.copy_parameters(),
            client_control,
            server_control,
            add_scaled_lists(server_control, client_control, -1),
        )

    def loss(
        self, task: LocalTask[ScaffoldState], context: _RoundCorrection, inputs: Tensor, labels: Tensor
    ) -> Tensor:
        return F.cross_entropy(extract_logits(task.module(inputs)), labels)

    def gradients(
        self, task: LocalTask[ScaffoldState], context: _RoundCorrection, inputs: Tensor, labels: Tensor
    ) -> Sequence[Tensor]:
        return add_scaled_lists(super().gradients(task, context, inputs, labels), context.drift)

    def extra_tensors(
        self, task: LocalTask[ScaffoldState], context: _RoundCorrection, steps: int
    ) -> Mapping[str, Tensor]:
        control_change = add_scaled_lists(
            self._updated_control(task, context, steps), context.client_control, -1
        )
        return {
            f"{_CONTROL_PREFIX}{name}": tensor
            for name, tensor in zip(task.parameter_names, control_change, strict=True)
        }

    def next_client_state(
        self, task: LocalTask[ScaffoldState], context: _RoundCorrection, steps: int
    ) -> ScaffoldState:
        return ScaffoldState(
            dict(zip(task.parameter_names, self._updated_control(task, context, steps), strict=True))
        )

    @torch.no_grad()
    def _updated_control(
        self, task: LocalTask[ScaffoldState], context: _RoundCorrection, steps: int
    ) -> list[Tensor]:
        """Return c_i', or c_i if the client took no step."""
        if not steps:
            return context.client_control
        displacement = add_scaled_lists(context.start, task.parameters, -1)
        return add_scaled_lists(
            add_scaled_lists(context.client_control, context.server_control, -1),
            displacement,
            1 / (steps * task.lr),
        )


def _tensors_by_parameter(task: LocalTask[ScaffoldState], tensors: Mapping[str, Tensor]) -> list[Tensor]:
    """Return one tensor per parameter of the task; zeros for a parameter without a tensor."""
    pairs = zip(task.parameter_names, task.parameters, strict=True)
    return [
        tensors[name].to(parameter.detach()) if name in tensors else torch.zeros_like(parameter)
        for name, parameter in pairs
    ]


class ServerControl(ServerHook[ScaffoldState]):
    """The server's control variate c."""

    state_type: ClassVar[type] = ScaffoldState

    def __init__(self, trained: tuple[str, ...]) -> None:
        self.trained = trained

    def init(self, model: StateDict) -> ScaffoldState:
        return ScaffoldState({name: torch.zeros_like(model[name]) for name in self.trained})

    def extra_tensors(self, state: ScaffoldState) -> Mapping[str, Tensor]:
        return {f"{_CONTROL_PREFIX}{name}": tensor for name, tensor in state.control_by_name.items()}

    def update_state(
        self, state: ScaffoldState, round: RoundData, model: StateDict, num_clients: int
    ) -> ScaffoldState:
        total = dict(state.control_by_name)
        for name in round.clients:
            received = round.updates[name].extra_tensors
            control_tensors = {key: received[key] for key in received if key.startswith(_CONTROL_PREFIX)}
            # The control of a client that did not train, or whose tensors do not fit, counts as unchanged.
            control_change = {key[len(_CONTROL_PREFIX) :]: tensor for key, tensor in control_tensors.items()}
            expected = {key: total[key] for key in control_change if key in total}
            if control_change and describe_mismatch(control_change, expected) is None:
                total = add_scaled(
                    total,
                    {key: control_change[key].to(total[key]) for key in control_change},
                    1 / num_clients,
                )
        return ScaffoldState(total)
