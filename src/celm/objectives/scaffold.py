"""SCAFFOLD: control variates that undo the drift of clients.

    client, each step:  w <- w - η (g - c_i + c)
    client, at the end: c_i' = c_i - c + (w_g - w_i) / (τ η)        option II; τ steps at the round's rate η
    server:             c <- c + (1/N) Σ_{i present} (c_i' - c_i)    N all clients, present or not

Karimireddy, Kale, Mohri, Reddi, Stich, Suresh, "SCAFFOLD: stochastic controlled averaging for federated
learning", ICML 2020. All controls begin at zero. Over the wire: c to the clients, c_i' - c_i from them, each as
large as the trained parameters. The server's own step is the rule's. Meant for plain SGD: with momentum,
(w_g - w_i) / (τ η) is no longer a mean of gradients, but some ten times that (with momentum 0.9).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor
from torch.nn import functional as F

from celm.method.stacking import logits_of
from celm.models.deltas import moved
from celm.models.state import StateDict, describe_mismatch
from celm.objectives.objective import Objective, ServerPart, Task
from celm.objectives.vectors import names_of, plus, snapshot
from celm.rules.exchange import Round

PREFIX = "control/"
"""Before a parameter's name, in extras both ways."""


@dataclass(frozen=True)
class Control:
    """A control variate: c_i of a client, c of the server; parameter name to tensor."""

    of: Mapping[str, Tensor]


@dataclass(frozen=True)
class Correction:
    """A client's round: its parameters as delivered, its control, the server's, and c - c_i."""

    start: list[Tensor]
    own: list[Tensor]
    shared: list[Tensor]
    drift: list[Tensor]


@dataclass(frozen=True)
class Scaffold(Objective[Control]):
    """Cross-entropy, with gradients corrected by control variates."""

    memory_type: ClassVar[type | None] = Control

    def server(self, head: tuple[str, ...], trained: tuple[str, ...]) -> ServerPart[Control]:
        return SharedControl(trained)

    def begin(self, task: Task[Control]) -> Correction:
        own = found(task, {} if task.memory is None else task.memory.of)
        sent = task.delivery.extras
        shared = found(task, {key[len(PREFIX) :]: sent[key] for key in sent if key.startswith(PREFIX)})
        return Correction(snapshot(task), own, shared, plus(shared, own, -1))

    def loss(self, task: Task[Control], context: Correction, inputs: Tensor, labels: Tensor) -> Tensor:
        return F.cross_entropy(logits_of(task.module(inputs)), labels)

    def gradients(
        self, task: Task[Control], context: Correction, inputs: Tensor, labels: Tensor
    ) -> Sequence[Tensor]:
        return plus(super().gradients(task, context, inputs, labels), context.drift)

    def extras(self, task: Task[Control], context: Correction, steps: int) -> Mapping[str, Tensor]:
        change = plus(self.control(task, context, steps), context.own, -1)
        return {f"{PREFIX}{name}": tensor for name, tensor in zip(names_of(task), change, strict=True)}

    def remember(self, task: Task[Control], context: Correction, steps: int) -> Control:
        return Control(dict(zip(names_of(task), self.control(task, context, steps), strict=True)))

    @torch.no_grad()
    def control(self, task: Task[Control], context: Correction, steps: int) -> list[Tensor]:
        """c_i'; what it was for a client that took no step."""
        if not steps:
            return context.own
        way = plus(context.start, task.parameters, -1)
        return plus(plus(context.own, context.shared, -1), way, 1 / (steps * task.lr))


def found(task: Task[Control], tensors: Mapping[str, Tensor]) -> list[Tensor]:
    """The tensors of the task's parameters, in their order; zero for one that is not named."""
    pairs = zip(names_of(task), task.parameters, strict=True)
    return [
        tensors[name].to(parameter.detach()) if name in tensors else torch.zeros_like(parameter)
        for name, parameter in pairs
    ]


class SharedControl(ServerPart[Control]):
    """The server's control."""

    state_type: ClassVar[type] = Control

    def __init__(self, trained: tuple[str, ...]) -> None:
        self.trained = trained

    def init(self, model: StateDict) -> Control:
        return Control({name: torch.zeros_like(model[name]) for name in self.trained})

    def extras(self, state: Control) -> Mapping[str, Tensor]:
        return {f"{PREFIX}{name}": tensor for name, tensor in state.of.items()}

    def absorb(self, state: Control, round: Round, model: StateDict, clients: int) -> Control:
        total = dict(state.of)
        for name in round.clients:
            sent = round.updates[name].extras
            own = {key: sent[key] for key in sent if key.startswith(PREFIX)}
            # A client that did not train, or whose answer does not fit, counts as one whose control stayed.
            change = {key[len(PREFIX) :]: tensor for key, tensor in own.items()}
            expected = {key: total[key] for key in change if key in total}
            if change and describe_mismatch(change, expected) is None:
                total = moved(total, {key: change[key].to(total[key]) for key in change}, 1 / clients)
        return Control(total)
