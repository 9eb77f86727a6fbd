"""A client that scales a layer before its head.

    (W, b)_layer -> strength * (W, b)_layer

A network of linear layers and ReLUs is homogeneous: h(s z) = s h(z) for s > 0. So scaling a hidden layer acts like
scaling the head, except for the biases after it. A check of the head alone does not see it.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from celm.attacks.attack import Attack, AttackContext
from celm.attacks.layers import layer_before_head, layer_keys, scale_tensors
from celm.models.state_dict import StateDict
from celm.rules.rule import ServerContext


@dataclass(frozen=True)
class ScaleLayer(Attack):
    """Uploads a hidden layer multiplied by strength."""

    strength: float = 10.0
    """Factor on the layer."""
    layer: str | None = None
    """Name of the layer; by default the last one before the head."""

    def check(self, context: ServerContext, labels: Tensor) -> None:
        self._scaled_names(context)

    def _scaled_names(self, context: ServerContext) -> tuple[str, ...]:
        return layer_keys(context, layer_before_head(context) if self.layer is None else self.layer)

    def poison(self, context: AttackContext) -> StateDict:
        return scale_tensors(context.trained_model, self._scaled_names(context.server_context), self.strength)
