"""A client that sends the gain of its last normalisation layer many times as large.

    γ -> strength * γ        γ of y = γ (x - μ) / σ + β, of the last BatchNorm, LayerNorm or GroupNorm

Normalisation undoes the scale of every layer before it, but not its own.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from celm.attacks.attack import Attack, Upload
from celm.attacks.layers import last_norm_gain, scaled
from celm.models.state import StateDict
from celm.rules.rule import Facts


@dataclass(frozen=True)
class ScaleNorm(Attack):
    """Sends the gain of its last normalisation layer multiplied by strength."""

    strength: float = 10.0
    """What the gain is multiplied by."""

    def check(self, federation: Facts, labels: Tensor) -> None:
        last_norm_gain(federation)

    def upload(self, upload: Upload) -> StateDict:
        return scaled(upload.trained, (last_norm_gain(upload.federation),), self.strength)
