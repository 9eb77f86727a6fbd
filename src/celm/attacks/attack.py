"""What an attack is: a change of a client's upload, its data or its training, never of what the client itself keeps.

An attack is a frozen dataclass whose fields are its settings; `client` says who, `strength` how much. It overrides
the one hook that it is about; all others are those of an honest client. Data are changed once, for the whole run
(`deal`, `relabel`); all else only in the rounds of the attack.
"""

from __future__ import annotations

from abc import ABC
from dataclasses import dataclass, field
from typing import Annotated

import torch
from pydantic import Field
from torch import Tensor

from celm.base.registry import Configurable
from celm.data.split import Dealing
from celm.models.state import StateDict
from celm.objectives.habits import Habits
from celm.rules.rule import Facts


@dataclass(frozen=True)
class Upload:
    """What an attacker has in hand when it answers: what it trained, and what it began from, now and before."""

    number: int
    """The round, counted from 1."""
    trained: StateDict
    delivered: StateDict
    """The model it was sent, with its own head while heads stay local."""
    before: StateDict | None
    """The same in its previous round; None in its first."""
    noise: torch.Generator
    federation: Facts
    labels: Tensor = field(default_factory=lambda: torch.empty(0, dtype=torch.int64))
    """The labels of its samples `[n]`."""
    global_model: StateDict = field(default_factory=dict)
    """The global model that the round began from, with its own head also while heads stay local."""


@dataclass(frozen=True)
class Attack(Configurable, ABC):
    client: str = "client-0"
    """Who attacks."""
    strength: float = 1.0
    """How much; what that means is up to the attack."""
    first: Annotated[int, Field(ge=1)] = 1
    """First round of the attack; the client works honestly before."""
    last: Annotated[int, Field(ge=1)] | None = None
    """Last round of the attack, by default that of the run; the client works honestly afterwards."""

    def __post_init__(self) -> None:
        timed = self.first > 1 or self.last is not None
        if timed and (type(self).deal is not Attack.deal or type(self).relabel is not Attack.relabel):
            raise ValueError(
                "attack.first and attack.last do not go with it, as it changes data for the whole run"
            )
        if self.last is not None and self.last < self.first:
            raise ValueError(f"attack.last, {self.last}, is before attack.first, {self.first}")

    def goes_on(self, number: int) -> bool:
        """Whether the client attacks in this round."""
        return self.first <= number and (self.last is None or number <= self.last)

    def check(self, federation: Facts, labels: Tensor) -> None:
        """Raise where this client, with labels `[n]`, cannot make this attack in this federation."""

    def deal(self, dealing: Dealing) -> Dealing:
        """Who holds what in place of what was dealt."""
        return dealing

    def beside(self, behaviour: Attack) -> Attack | None:
        """What a client does that its split has misbehave already; None where the two do not go together."""
        return None

    def relabel(self, labels: Tensor, classes: int, noise: torch.Generator) -> Tensor:
        """What the client trains on in place of its labels `[n]`."""
        return labels

    def trains(self, number: int, rounds: int) -> bool:
        """Whether the client trains in this round, of so many, before it answers."""
        return True

    def habits(self) -> Habits:
        """How the client trains."""
        return Habits()

    def upload(self, upload: Upload) -> StateDict:
        """What is sent in place of the trained model."""
        return upload.trained
