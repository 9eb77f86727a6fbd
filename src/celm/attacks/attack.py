"""The interface of attacks: a change of a client's upload, data or training, never of the model that the client keeps.

An attack is a frozen dataclass whose fields are its settings. It overrides one or two hooks; the defaults are those
of an honest client. `transform_partition` and `relabel` change data once, for the whole run. All other hooks apply
only in the rounds of the attack.
"""

from __future__ import annotations

from abc import ABC
from dataclasses import dataclass, field
from typing import Annotated

import torch
from pydantic import Field
from torch import Tensor

from celm.base.registry import Configurable
from celm.data.split import Partition
from celm.models.state_dict import StateDict
from celm.models.state_ops import add_scaled, difference
from celm.objectives.local_sgd import TrainingOverrides
from celm.rules.rule import ServerContext


@dataclass(frozen=True)
class AttackContext:
    """The information that an attacker has when it uploads."""

    round_number: int
    """Counted from 1."""
    trained_model: StateDict
    received_model: StateDict
    """The model that it started from, with its own head while heads stay local."""
    previous_received_model: StateDict | None
    """`received_model` of its previous round; None in its first."""
    generator: torch.Generator
    server_context: ServerContext
    labels: Tensor = field(default_factory=lambda: torch.empty(0, dtype=torch.int64))
    """Labels of its samples `[n]`."""
    global_model: StateDict = field(default_factory=dict)
    """The global model at the start of the round, with the global head also while heads stay local."""
    earlier_models: tuple[StateDict, ...] = ()
    """`received_model` of its last rounds, the latest at the end: up to `Attack.remembered_models`."""


@dataclass(frozen=True)
class Attack(Configurable, ABC):
    """Base of attacks: a frozen dataclass whose fields are settings (`attack.*`)."""

    client: str = "client-0"
    """Name of the client that attacks."""
    strength: float = 1.0
    """Strength of the attack, in a unit that each attack defines."""
    first_round: Annotated[int, Field(ge=1)] = 1
    """First round of the attack; before it the client is honest."""
    last_round: Annotated[int, Field(ge=1)] | None = None
    """Last round of the attack, by default that of the run; after it the client is honest."""

    def __post_init__(self) -> None:
        has_schedule = self.first_round > 1 or self.last_round is not None
        if has_schedule and (
            type(self).transform_partition is not Attack.transform_partition
            or type(self).relabel is not Attack.relabel
        ):
            raise ValueError(
                "attack.first_round and attack.last_round do not apply: this attack changes data for the whole run"
            )
        if self.last_round is not None and self.last_round < self.first_round:
            raise ValueError(
                f"attack.last_round is before attack.first_round: {self.last_round} < {self.first_round}"
            )

    @property
    def attackers(self) -> tuple[str, ...]:
        """Names of the clients that make this attack."""
        return (self.client,)

    @property
    def remembered_models(self) -> int:
        """Number of received models that the attacker remembers."""
        return 1

    def is_active(self, round_number: int) -> bool:
        """Return whether the client attacks in this round."""
        return self.first_round <= round_number and (
            self.last_round is None or round_number <= self.last_round
        )

    def check(self, context: ServerContext, labels: Tensor) -> None:
        """Raise an error if a client with labels `[n]` cannot make this attack in this federation."""

    def transform_partition(self, partition: Partition) -> Partition:
        """Return the partition that replaces the one of the split."""
        return partition

    def combine_with(self, behaviour: Attack) -> Attack | None:
        """Return the attack of a client to which its split gives `behaviour`; None if the two exclude each other."""
        return None

    def relabel(self, labels: Tensor, classes: int, generator: torch.Generator) -> Tensor:
        """Return the labels `[n]` that the client trains on."""
        return labels

    def trains_in(self, round_number: int, rounds: int) -> bool:
        """Return whether the client trains in this round, of `rounds`, before it uploads."""
        return True

    def training_overrides(self) -> TrainingOverrides:
        """Return how the client's training differs from the run's settings."""
        return TrainingOverrides()

    def poison(self, context: AttackContext) -> StateDict:
        """Return the model that is uploaded in place of the trained one."""
        return context.trained_model


def remove_poison(message_model: StateDict, trained_model: StateDict, uploaded_model: StateDict) -> StateDict:
    """Return the model that an attacker continues from if the server's message builds on its upload.

        start = message - c (upload - trained),   c = <message - trained, upload - trained> / ||upload - trained||²

    c, clamped to [0, 1], is the share of the poison that is still in the message. It is 1 if the server added to the
    upload, and less if it clipped or mixed it. Integer and boolean buffers are the attacker's own.
    """
    poison = difference(uploaded_model, trained_model)
    squared_norm = _dot(poison, poison)
    if squared_norm == 0:
        return message_model
    server_change = difference(message_model, uploaded_model)
    # Use 1 - c, which is exactly 0 if the server returns the upload: the start is then the trained model to the bit.
    removed_share = min(max(-_dot(server_change, poison) / squared_norm, 0.0), 1.0)
    return add_scaled(add_scaled(trained_model, server_change), poison, removed_share)


def _dot(a: StateDict, b: StateDict) -> float:
    return sum(float((a[name].double() * b[name].double()).sum()) for name in a)
