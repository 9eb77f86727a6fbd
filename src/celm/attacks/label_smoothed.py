"""Not an attack: an honest client that trains with smoothed labels.

    y_j -> (1 - ε) y_j + ε / K        ε = strength

Its logits are smaller, so it may look as if it had learned less.

Reference: Szegedy et al., Rethinking the Inception Architecture for Computer Vision, CVPR 2016.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from pydantic import Field

from celm.attacks.attack import Attack
from celm.objectives.local_sgd import TrainingOverrides


@dataclass(frozen=True)
class LabelSmoothed(Attack):
    """Honest variant: trains on labels smoothed by strength."""

    strength: Annotated[float, Field(ge=0, le=1)] = 0.1
    """ε, the part of each label that is spread over all classes."""

    def training_overrides(self) -> TrainingOverrides:
        return TrainingOverrides(label_smoothing=self.strength)
