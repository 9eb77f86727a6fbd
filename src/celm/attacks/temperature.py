"""An honest client that calibrates its model by a temperature before it sends it.

    (W, b)_head -> (W, b)_head / T        T = strength: softmax(s / T)

Above 1 the model is less sure, and looks as if it knew less. It is `scale_head` by 1 / T, done in good faith.

Reference: Guo, Pleiss, Sun & Weinberger, On Calibration of Modern Neural Networks, ICML 2017.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from pydantic import Field

from celm.attacks.attack import Attack, Upload
from celm.attacks.layers import scaled
from celm.models.state import StateDict


@dataclass(frozen=True)
class Temperature(Attack):
    """Sends its head divided by strength."""

    strength: Annotated[float, Field(gt=0)] = 2.0
    """T: what the logits are divided by."""

    def upload(self, upload: Upload) -> StateDict:
        return scaled(upload.trained, upload.federation.head, 1 / self.strength)
