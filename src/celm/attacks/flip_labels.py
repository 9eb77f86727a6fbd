"""A client that trains on wrong labels.

y_j -> a class drawn uniformly from all classes, for a fraction `strength` of the samples, once for the run
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import torch
from pydantic import Field
from torch import Tensor

from celm.attacks.attack import Attack


@dataclass(frozen=True)
class FlipLabels(Attack):
    """Trains on random labels for a fraction of its samples."""

    strength: Annotated[float, Field(ge=0, le=1)] = 1.0
    """Fraction of samples with a random label."""

    def relabel(self, labels: Tensor, classes: int, generator: torch.Generator) -> Tensor:
        random_labels = torch.randint(classes, labels.shape, generator=generator)
        return torch.where(
            torch.rand(labels.shape, generator=generator) < self.strength, random_labels, labels
        )
