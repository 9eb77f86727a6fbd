"""An honest client that trains longer and faster than agreed.

    E local epochs in place of the agreed number, at strength times the agreed rate

Its logits grow, and with them whatever is read off logits, without any malice.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from pydantic import Field

from celm.attacks.attack import Attack
from celm.objectives.habits import Habits


@dataclass(frozen=True)
class Overconfident(Attack):
    """Trains for more epochs, at strength times the learning rate."""

    strength: Annotated[float, Field(gt=0)] = 2.0
    """What the learning rate is multiplied by."""
    epochs: Annotated[int, Field(ge=1)] = 5
    """Local epochs."""

    def habits(self) -> Habits:
        return Habits(epochs=self.epochs, rate=self.strength)
