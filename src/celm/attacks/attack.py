"""What an attack is: a change of a client's upload or of its labels, never of what the client itself keeps.

An attack is a frozen dataclass whose fields are its settings; `client` says who, `strength` how much.
"""

from __future__ import annotations

from abc import ABC
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from celm.base.registry import Configurable
from celm.models.state import StateDict


@dataclass(frozen=True)
class Upload:
    """What an attacker has in hand when it answers: what it trained, was sent now, and was sent the time before."""

    number: int
    trained: StateDict
    delivered: StateDict
    before: StateDict | None
    """The model delivered in its previous round; None in its first."""
    noise: torch.Generator


@dataclass(frozen=True)
class Attack(Configurable, ABC):
    trains: ClassVar[bool] = True
    """Whether the client trains at all before it answers."""

    client: str = "client-0"
    """Who attacks."""
    strength: float = 1.0
    """How much; what that means is up to the attack."""

    def upload(self, upload: Upload) -> StateDict:
        """What is sent in place of the trained model."""
        return upload.trained

    def relabel(self, labels: Tensor, classes: int, noise: torch.Generator) -> Tensor:
        """What the client trains on in place of its labels `[n]`."""
        return labels
