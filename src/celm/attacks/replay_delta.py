"""A free-rider that does not train and sends the last change of the global model once more.

    w_i = w_delivered + strength * (w_delivered - w_before)

The answer points where the federation goes, so similarity to the average is high. In its first round the
client has seen no change and sends the model back as it is.
"""

from __future__ import annotations

from dataclasses import dataclass

from celm.attacks.attack import Attack, Upload
from celm.models.state import StateDict


@dataclass(frozen=True)
class ReplayDelta(Attack):
    """Does not train: adds the last change of the global model once more."""

    def trains(self, number: int, rounds: int) -> bool:
        return False

    def upload(self, upload: Upload) -> StateDict:
        before = upload.before
        if before is None:
            return upload.delivered
        return {
            name: tensor + self.strength * (tensor - before[name]) if tensor.is_floating_point() else tensor
            for name, tensor in upload.delivered.items()
        }
