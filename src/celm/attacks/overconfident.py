"""Not an attack: an honest client that trains longer and faster than agreed.

    E local epochs instead of the agreed number, at strength times the agreed learning rate

Its logits grow, and with them every estimate that is based on logits.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from pydantic import Field

from celm.attacks.attack import Attack
from celm.objectives.local_sgd import TrainingOverrides


@dataclass(frozen=True)
class Overconfident(Attack):
    """Honest variant: trains longer and at a higher learning rate.

    The learning rate is multiplied by `strength`.
    """

    strength: Annotated[float, Field(gt=0)] = 2.0
    """Factor on the learning rate."""
    epochs: Annotated[int, Field(ge=1)] = 5
    """Local epochs."""

    def training_overrides(self) -> TrainingOverrides:
        return TrainingOverrides(epochs=self.epochs, lr_factor=self.strength)
