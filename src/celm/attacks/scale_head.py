"""A client that sends its last linear layer many times as large.

    (W, b)_head -> strength * (W, b)_head

Its logits are multiplied by the strength; what it predicts stays the same.
"""

from __future__ import annotations

from dataclasses import dataclass

from celm.attacks.attack import Attack, Upload
from celm.attacks.layers import scaled
from celm.models.state import StateDict


@dataclass(frozen=True)
class ScaleHead(Attack):
    """Sends its head multiplied by strength."""

    strength: float = 10.0
    """What the head is multiplied by."""

    def upload(self, upload: Upload) -> StateDict:
        return scaled(upload.trained, upload.federation.head, self.strength)
