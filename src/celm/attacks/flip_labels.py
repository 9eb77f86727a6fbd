"""A client that trains on wrong labels.

y_j -> a class drawn uniformly from all, for a fraction `strength` of the samples, once for the whole run
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
    """Trains on random labels, for a fraction of its samples."""

    strength: Annotated[float, Field(ge=0, le=1)] = 1.0
    """Fraction of samples with a random label."""

    def relabel(self, labels: Tensor, classes: int, noise: torch.Generator) -> Tensor:
        drawn = torch.randint(classes, labels.shape, generator=noise)
        return torch.where(torch.rand(labels.shape, generator=noise) < self.strength, drawn, labels)
