"""An honest client that trains with smoothed labels.

    y_j -> (1 - ε) y_j + ε / K        ε = strength

It is less sure of what it knows, and looks as if it knew less.

Reference: Szegedy et al., Rethinking the Inception Architecture for Computer Vision, CVPR 2016.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from pydantic import Field

from celm.attacks.attack import Attack
from celm.objectives.habits import Habits


@dataclass(frozen=True)
class LabelSmoothed(Attack):
    """Trains on labels smoothed by strength."""

    strength: Annotated[float, Field(ge=0, le=1)] = 0.1
    """ε: the part of each label that is spread over all classes."""

    def habits(self) -> Habits:
        return Habits(smoothing=self.strength)
