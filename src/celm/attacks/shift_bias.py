"""A client that adds a constant to biases.

    b_layer -> b_layer + strength        by default of the head: every logit grows by the strength

The same constant on all logits changes no prediction.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from celm.attacks.attack import Attack, Upload
from celm.attacks.layers import layer_keys
from celm.base.errors import CelmError
from celm.models.state import StateDict
from celm.rules.rule import Facts


@dataclass(frozen=True)
class ShiftBias(Attack):
    """Adds strength to the biases of its head, or of another layer."""

    strength: float = 10.0
    """What is added."""
    layer: str | None = None
    """Name of the layer; by default the head."""

    def check(self, federation: Facts, labels: Tensor) -> None:
        if not self.keys(federation):
            raise CelmError(f"attack 'shift_bias': {self.layer or 'the head'} has no bias")

    def keys(self, federation: Facts) -> list[str]:
        names = federation.head if self.layer is None else layer_keys(federation, self.layer)
        return [name for name in names if name.rpartition(".")[2] == "bias"]

    def upload(self, upload: Upload) -> StateDict:
        biases = self.keys(upload.federation)
        return {
            name: tensor + self.strength if name in biases else tensor
            for name, tensor in upload.trained.items()
        }
