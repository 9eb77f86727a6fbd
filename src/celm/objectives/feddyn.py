"""FedDyn: dynamic regularisation that aligns the clients' optima with the federation's.

    client:  min f_i(w) + α <h_i, w> + (α/2) ||w - w_g||²,   hence   g <- g + α (h_i + w - w_g)
             at the end h_i <- h_i + w_i - w_g
    server:  h <- h + (1/N) Σ_{i present} (w_i - w_g), the mean of all h_i;   w_avg aggregated by the rule
             w_avg is evaluated, clients start from w_g = w_avg + h

At a minimum of the client's loss, h_i = -∇f_i(w_i) / α. So at a fixed point the gradients sum to zero.

Acar, Zhao, Matas Navarro, Mattina, Whatmough, Saligrama, "Federated learning based on dynamic regularization",
ICLR 2021. The form is that of the authors' code (alpemreacar/FedDyn); the paper writes -α h_i for our h_i. α is the
same for every client, as in the code if all have equally many samples. Only models are exchanged.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar

import torch
from pydantic import Field
from torch import Tensor
from torch.nn import functional as F

from celm.core.model_stack import extract_logits
from celm.models.state_dict import StateDict
from celm.models.state_ops import add_scaled
from celm.objectives.objective import LocalTask, Objective, ServerHook
from celm.objectives.training_ops import add_scaled_lists, clip_list_norm
from celm.rules.messages import RoundData


@dataclass(frozen=True)
class FedDynState:
    """h_i of a client or h of the server; parameter name to tensor."""

    drift_by_name: Mapping[str, Tensor]


@dataclass(frozen=True)
class _RoundRegulariser:
    """A client's received parameters and its drift so far."""

    start: list[Tensor]
    drift: list[Tensor]


@dataclass(frozen=True)
class FedDyn(Objective[FedDynState]):
    """Cross-entropy and a regulariser that corrects each client's drift."""

    client_state_type: ClassVar[type | None] = FedDynState

    alpha: Annotated[float, Field(gt=0, allow_inf_nan=False)] = 0.01
    """α, the strength of the regulariser; the authors' value for CIFAR."""
    clip: Annotated[float, Field(ge=0)] = 10.0
    """Largest gradient norm, including the regulariser; the authors' value. 0: no bound."""

    def server_hook(self, head: tuple[str, ...], trained: tuple[str, ...]) -> ServerHook[FedDynState]:
        return ServerDrift(trained)

    def start_round(self, task: LocalTask[FedDynState]) -> _RoundRegulariser:
        start = task.copy_parameters()
        previous_drift = {} if task.client_state is None else task.client_state.drift_by_name
        pairs = zip(task.parameter_names, start, strict=True)
        drift = [
            previous_drift[name].to(tensor) if name in previous_drift else torch.zeros_like(tensor)
            for name, tensor in pairs
        ]
        return _RoundRegulariser(start, drift)

    def loss(
        self, task: LocalTask[FedDynState], context: _RoundRegulariser, inputs: Tensor, labels: Tensor
    ) -> Tensor:
        return F.cross_entropy(extract_logits(task.module(inputs)), labels)

    def gradients(
        self, task: LocalTask[FedDynState], context: _RoundRegulariser, inputs: Tensor, labels: Tensor
    ) -> Sequence[Tensor]:
        gradients = super().gradients(task, context, inputs, labels)
        with torch.no_grad():
            return clip_list_norm(
                add_scaled_lists(gradients, self._current_drift(task, context), self.alpha), self.clip
            )

    def next_client_state(
        self, task: LocalTask[FedDynState], context: _RoundRegulariser, steps: int
    ) -> FedDynState:
        return FedDynState(dict(zip(task.parameter_names, self._current_drift(task, context), strict=True)))

    @torch.no_grad()
    def _current_drift(self, task: LocalTask[FedDynState], context: _RoundRegulariser) -> list[Tensor]:
        """Return h_i + w - w_g."""
        return add_scaled_lists(context.drift, add_scaled_lists(task.parameters, context.start, -1))


class ServerDrift(ServerHook[FedDynState]):
    """The mean drift of all clients, computed from messages and updates."""

    state_type: ClassVar[type] = FedDynState

    def __init__(self, trained: tuple[str, ...]) -> None:
        self.trained = trained

    def init(self, model: StateDict) -> FedDynState:
        return FedDynState({name: torch.zeros_like(model[name]) for name in self.trained})

    def update_state(
        self, state: FedDynState, round: RoundData, model: StateDict, num_clients: int
    ) -> FedDynState:
        total = dict(state.drift_by_name)
        for client in round.clients:
            received, returned = round.messages[client].model, round.updates[client].model
            delta = {name: returned[name].to(total[name]) - received[name].to(total[name]) for name in total}
            total = add_scaled(total, delta, 1 / num_clients)
        return FedDynState(total)

    def broadcast_model(self, state: FedDynState, model: StateDict) -> StateDict:
        return add_scaled(model, state.drift_by_name)
