"""A free-rider that does not train and returns what it was sent, plain or disguised by noise.

    w_i = w_delivered + strength * mean|w_delivered - w_before| * N(0, 1)
    w_i -> scale * w_i,  and its head once more  -> head * (W, b)_head

Strength 0 is the plain free-rider. The noise is as large as the last change of the model, so that the answer looks
like work; in its first round the client has seen no change and adds none. Larger weights make a model that learned
nothing look sure of itself.

Reference: Fraboni, Vidal, Lorenzi, Free-rider Attacks on Model Aggregation in Federated Learning, AISTATS 2021.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from celm.attacks.attack import Attack, Upload
from celm.attacks.layers import scaled
from celm.models.state import StateDict


@dataclass(frozen=True)
class CopyGlobal(Attack):
    """Does not train: returns the model it was sent, with noise by strength."""

    strength: float = 0.0
    """Noise, in units of the last mean absolute change of the model; 0 is plain."""
    scale: float = 1.0
    """What all weights are multiplied by."""
    head: float = 1.0
    """What the head is multiplied by, on top."""

    def trains(self, number: int, rounds: int) -> bool:
        return False

    def upload(self, upload: Upload) -> StateDict:
        sent = self.disguised(upload)
        moving = [name for name, tensor in sent.items() if tensor.is_floating_point()]
        return scaled(scaled(sent, moving, self.scale), upload.federation.head, self.head)

    def disguised(self, upload: Upload) -> StateDict:
        before = upload.before
        if not self.strength or before is None:
            return upload.delivered
        moving = [name for name, tensor in upload.delivered.items() if tensor.is_floating_point()]
        change = torch.cat([(upload.delivered[name] - before[name]).abs().flatten() for name in moving])
        scale = self.strength * change.mean().item()
        sent = dict(upload.delivered)
        for name in moving:
            noise = torch.randn(sent[name].shape, generator=upload.noise)
            sent[name] = sent[name] + scale * noise.to(sent[name])
        return sent
