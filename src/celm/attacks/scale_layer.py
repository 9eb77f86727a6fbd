"""A client that sends a layer before its head many times as large.

    (W, b)_layer -> strength * (W, b)_layer

A network of linear layers and ReLUs is homogeneous: h(s z) = s h(z) for s > 0. So a hidden layer does what the head
does, but for the biases behind it, and leaves the head as it was for whoever looks at the head alone.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from celm.attacks.attack import Attack, Upload
from celm.attacks.layers import layer_before_head, layer_keys, scaled
from celm.models.state import StateDict
from celm.rules.rule import Facts


@dataclass(frozen=True)
class ScaleLayer(Attack):
    """Sends a hidden layer multiplied by strength."""

    strength: float = 10.0
    """What the layer is multiplied by."""
    layer: str | None = None
    """Name of the layer; by default the last before the head."""

    def check(self, federation: Facts, labels: Tensor) -> None:
        self.keys(federation)

    def keys(self, federation: Facts) -> tuple[str, ...]:
        return layer_keys(federation, layer_before_head(federation) if self.layer is None else self.layer)

    def upload(self, upload: Upload) -> StateDict:
        return scaled(upload.trained, self.keys(upload.federation), self.strength)
