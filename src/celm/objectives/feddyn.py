"""FedDyn: dynamic regularisation, under which the clients' optima and the federation's agree.

    client:  min f_i(w) + α <h_i, w> + (α/2) ||w - w_g||²,   hence   g <- g + α (h_i + w - w_g)
             at the end h_i <- h_i + w_i - w_g
    server:  h <- h + (1/N) Σ_{i present} (w_i - w_g), the mean of all h_i;   w_avg merged by the rule
             judged is w_avg, clients start from w_g = w_avg + h

At a minimum of the client's, h_i = -∇f_i(w_i) / α: where nothing moves any more, the gradients sum to zero.

Acar, Zhao, Matas Navarro, Mattina, Whatmough, Saligrama, "Federated learning based on dynamic regularization",
ICLR 2021, in the form of the authors' code (alpemreacar/FedDyn); the paper writes -α h_i for our h_i. α is the
same for every client, as with the code's weights of equally many samples. Nothing but models is exchanged.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar

import torch
from pydantic import Field
from torch import Tensor
from torch.nn import functional as F

from celm.method.stacking import logits_of
from celm.models.deltas import moved
from celm.models.state import StateDict
from celm.objectives.objective import Objective, ServerPart, Task
from celm.objectives.vectors import clipped, names_of, plus, snapshot
from celm.rules.exchange import Round


@dataclass(frozen=True)
class Drift:
    """h_i of a client, h of the server; parameter name to tensor."""

    of: Mapping[str, Tensor]


@dataclass(frozen=True)
class Regulariser:
    """A client's round: its parameters as delivered, and its drift so far."""

    start: list[Tensor]
    drift: list[Tensor]


@dataclass(frozen=True)
class FedDyn(Objective[Drift]):
    """Cross-entropy and a regulariser that learns each client's drift."""

    memory_type: ClassVar[type | None] = Drift

    alpha: Annotated[float, Field(gt=0, allow_inf_nan=False)] = 0.01
    """α, the strength of the regulariser; the authors' value for CIFAR."""
    clip: Annotated[float, Field(ge=0)] = 10.0
    """Longest gradient, the regulariser's included; the authors' value. 0: any length."""

    def server(self, head: tuple[str, ...], trained: tuple[str, ...]) -> ServerPart[Drift]:
        return MeanDrift(trained)

    def begin(self, task: Task[Drift]) -> Regulariser:
        start = snapshot(task)
        known = {} if task.memory is None else task.memory.of
        pairs = zip(names_of(task), start, strict=True)
        drift = [
            known[name].to(tensor) if name in known else torch.zeros_like(tensor) for name, tensor in pairs
        ]
        return Regulariser(start, drift)

    def loss(self, task: Task[Drift], context: Regulariser, inputs: Tensor, labels: Tensor) -> Tensor:
        return F.cross_entropy(logits_of(task.module(inputs)), labels)

    def gradients(
        self, task: Task[Drift], context: Regulariser, inputs: Tensor, labels: Tensor
    ) -> Sequence[Tensor]:
        gradients = super().gradients(task, context, inputs, labels)
        with torch.no_grad():
            return clipped(plus(gradients, self.drift(task, context), self.alpha), self.clip)

    def remember(self, task: Task[Drift], context: Regulariser, steps: int) -> Drift:
        return Drift(dict(zip(names_of(task), self.drift(task, context), strict=True)))

    @torch.no_grad()
    def drift(self, task: Task[Drift], context: Regulariser) -> list[Tensor]:
        """h_i + w - w_g."""
        return plus(context.drift, plus(task.parameters, context.start, -1))


class MeanDrift(ServerPart[Drift]):
    """The mean of the drifts of all clients, followed through what they are sent and send."""

    state_type: ClassVar[type] = Drift

    def __init__(self, trained: tuple[str, ...]) -> None:
        self.trained = trained

    def init(self, model: StateDict) -> Drift:
        return Drift({name: torch.zeros_like(model[name]) for name in self.trained})

    def absorb(self, state: Drift, round: Round, model: StateDict, clients: int) -> Drift:
        total = dict(state.of)
        for client in round.clients:
            before, after = round.delivered[client].model, round.updates[client].model
            step = {name: after[name].to(total[name]) - before[name].to(total[name]) for name in total}
            total = moved(total, step, 1 / clients)
        return Drift(total)

    def depart(self, state: Drift, model: StateDict) -> StateDict:
        return moved(model, state.of)
