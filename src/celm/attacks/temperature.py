"""Not an attack: an honest client that calibrates its model by a temperature before it uploads it.

    (W, b)_head -> (W, b)_head / T        T = strength, so softmax(s) -> softmax(s / T)

With T > 1 the model is less confident and may look as if it had learned less. The upload is that of `scale_head`
by 1 / T.

Reference: Guo, Pleiss, Sun & Weinberger, On Calibration of Modern Neural Networks, ICML 2017.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from pydantic import Field

from celm.attacks.attack import Attack, AttackContext
from celm.attacks.layers import scale_tensors
from celm.models.state_dict import StateDict


@dataclass(frozen=True)
class Temperature(Attack):
    """Honest variant: uploads its head divided by strength."""

    strength: Annotated[float, Field(gt=0)] = 2.0
    """T, the divisor of the logits."""

    def poison(self, context: AttackContext) -> StateDict:
        return scale_tensors(context.trained_model, context.server_context.head, 1 / self.strength)
