"""A client that adds a constant to biases.

    b_layer -> b_layer + strength        by default of the head, so every logit grows by the strength

A constant on all logits does not change predictions.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from celm.attacks.attack import Attack, AttackContext
from celm.attacks.layers import layer_keys
from celm.base.errors import CelmError
from celm.models.state_dict import StateDict
from celm.rules.rule import ServerContext


@dataclass(frozen=True)
class ShiftBias(Attack):
    """Adds strength to the biases of its head, or of another layer."""

    strength: float = 10.0
    """The constant that is added."""
    layer: str | None = None
    """Name of the layer; by default the head."""

    def check(self, context: ServerContext, labels: Tensor) -> None:
        if not self._bias_names(context):
            raise CelmError(f"attack 'shift_bias': {self.layer or 'the head'} has no bias")

    def _bias_names(self, context: ServerContext) -> list[str]:
        names = context.head if self.layer is None else layer_keys(context, self.layer)
        return [name for name in names if name.rpartition(".")[2] == "bias"]

    def poison(self, context: AttackContext) -> StateDict:
        biases = self._bias_names(context.server_context)
        return {
            name: tensor + self.strength if name in biases else tensor
            for name, tensor in context.trained_model.items()
        }
