"""A client that scales its last linear layer.

    (W, b)_head -> strength * (W, b)_head

Its logits are multiplied by the strength; its predictions do not change.
"""

from __future__ import annotations

from dataclasses import dataclass

from celm.attacks.attack import Attack, AttackContext
from celm.attacks.layers import scale_tensors
from celm.models.state_dict import StateDict


@dataclass(frozen=True)
class ScaleHead(Attack):
    """Uploads its head multiplied by strength."""

    strength: float = 10.0
    """Factor on the head."""

    def poison(self, context: AttackContext) -> StateDict:
        return scale_tensors(context.trained_model, context.server_context.head, self.strength)
