"""A client that scales the gain of its last normalisation layer.

    γ -> strength * γ        γ of y = γ (x - μ) / σ + β, of the last BatchNorm, LayerNorm or GroupNorm

Normalisation undoes the scale of every layer before it, but not of its own gain.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from celm.attacks.attack import Attack, AttackContext
from celm.attacks.layers import last_norm_gain, scale_tensors
from celm.models.state_dict import StateDict
from celm.rules.rule import ServerContext


@dataclass(frozen=True)
class ScaleNorm(Attack):
    """Uploads the gain of its last norm layer times strength."""

    strength: float = 10.0
    """Factor on the gain."""

    def check(self, context: ServerContext, labels: Tensor) -> None:
        last_norm_gain(context)

    def poison(self, context: AttackContext) -> StateDict:
        return scale_tensors(context.trained_model, (last_norm_gain(context.server_context),), self.strength)
