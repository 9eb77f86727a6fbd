"""A client that does not train and sends large random weights.

    w_i = strength * N(0, 1)        every trained value on its own; buffers as they were delivered

Trained weights are mostly below 0.1, so strength 1 is large.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from celm.attacks.attack import Attack, Upload
from celm.models.anatomy import trained_keys
from celm.models.state import StateDict


@dataclass(frozen=True)
class RandomWeights(Attack):
    """Does not train: sends Gaussian weights of standard deviation strength."""

    strength: float = 1.0
    """Standard deviation of the weights."""

    def trains(self, number: int, rounds: int) -> bool:
        return False

    def upload(self, upload: Upload) -> StateDict:
        sent = dict(upload.delivered)
        for name in trained_keys(upload.federation.module):
            drawn = torch.randn(sent[name].shape, generator=upload.noise)
            sent[name] = self.strength * drawn.to(sent[name])
        return sent
