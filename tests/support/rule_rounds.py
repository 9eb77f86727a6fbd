"""Rounds in small: updates, federations that play on, and what every rule promises of its weights."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from celm.base.client_order import natural_sorted
from celm.models.state_dict import StateDict
from celm.rules.messages import ClientUpdate, RoundData, ServerMessage, ValidateFn
from celm.rules.rule import AnyRule, ServerContext, WeightingResult

Train = Callable[[StateDict, Any], StateDict]


def module_of(**sizes: int) -> nn.Module:
    """Parameters by name; what else a state dict holds are buffers."""
    module = nn.Module()
    for name, size in sizes.items():
        module.register_parameter(name, nn.Parameter(torch.zeros(size)))
    return module


def facts_of(module: nn.Module, clients: Sequence[str] = ("a", "b"), rounds: int = 10) -> ServerContext:
    return ServerContext(tuple(clients), 2, (1,), rounds, 0, module, ())


def a_round(
    start: StateDict,
    models: Mapping[str, StateDict],
    number: int = 1,
    *,
    sizes: Mapping[str, int] | None = None,
    steps: Mapping[str, int] | None = None,
    sent: Mapping[str, StateDict] | None = None,
    **other: Any,
) -> RoundData:
    """Clients by name: the model they send back, to what they were sent, which is `start` unless said."""
    updates = {
        name: ClientUpdate(model, (steps or {}).get(name, 1), (sizes or {}).get(name, 1))
        for name, model in models.items()
    }
    delivered = {name: ServerMessage((sent or {}).get(name, start)) for name in models}
    return RoundData(number, start, delivered, updates, **other)


def trained(before: StateDict, change: Any) -> StateDict:
    """Floating tensors moved by the values of `change`, in their order; those it does not reach go up by one."""
    values = torch.tensor(np.ravel(change), dtype=torch.float32)
    after: dict[str, Tensor] = {}
    for name, tensor in before.items():
        step, rest = values[: tensor.numel()], values[tensor.numel() :]
        if tensor.is_floating_point() and len(step):
            after[name], values = torch.nan_to_num(tensor + step.view_as(tensor)), rest
        else:
            after[name] = tensor + 1
    return after


class Federation:
    """Plays rounds; clients are given as changes to whatever they are delivered."""

    def __init__(
        self,
        rule: AnyRule,
        facts: ServerContext,
        start: StateDict,
        train: Train = trained,
        validate: ValidateFn | None = None,
    ) -> None:
        self.rule = rule
        self.facts = facts
        self.state = rule.init(facts)
        self.model = start
        self.train = train
        self.validate = validate
        self.number = 0

    def delivery(self, client: str) -> ServerMessage:
        return self.rule.message_for(self.state, self.model, client)

    def delivered(self, client: str) -> StateDict:
        return self.delivery(client).model

    def next_round(
        self,
        changes: Mapping[str, Any],
        sizes: Mapping[str, int] | None = None,
        *,
        steps: Mapping[str, int] | None = None,
        examined: Mapping[str, float | None] | None = None,
        backwards: bool = False,
    ) -> RoundData:
        names = natural_sorted(changes)[:: -1 if backwards else 1]
        sent = {name: self.delivery(name) for name in names}
        updates = {
            name: ClientUpdate(
                self.train(delivery.model, changes[name]),
                (steps or {}).get(name, 1),
                (sizes or {}).get(name, 1),
                reported_accuracy=(examined or {}).get(name),
            )
            for name, delivery in sent.items()
        }
        return RoundData(self.number + 1, self.model, sent, updates, self.validate)

    def play(self, changes: Mapping[str, Any], *said: Any, **more: Any) -> WeightingResult[Any]:
        round = self.next_round(changes, *said, **more)
        weighing = self.rule.compute_weights(self.state, self.facts, round)
        self.model = self.rule.aggregate(self.state, round, weighing)
        self.state = weighing.state
        self.number = round.round_number
        return weighing


def on_simplex(weights: Mapping[str, float]) -> bool:
    return min(weights.values()) >= 0 and math.isclose(math.fsum(weights.values()), 1, abs_tol=1e-9)


def identical(one: Any, other: Any) -> bool:
    """Whether two trees are the same to the bit: types, order of names, tensors."""
    if type(one) is not type(other):
        return False
    if isinstance(one, Tensor):
        return one.dtype == other.dtype and torch.equal(one, other)
    if dataclasses.is_dataclass(one):
        return all(identical(getattr(one, f.name), getattr(other, f.name)) for f in dataclasses.fields(one))
    if isinstance(one, Mapping):
        return list(one) == list(other) and all(identical(one[name], other[name]) for name in one)
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(identical, one, other))
    return bool(one == other)
