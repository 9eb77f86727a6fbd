"""A client that does not train and uploads large random weights.

    w_i = strength * N(0, 1)        every trained value independently; buffers as received

Trained weights are mostly below 0.1, so strength 1 is large.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from celm.attacks.attack import Attack, AttackContext
from celm.models.heads import trained_keys
from celm.models.state_dict import StateDict


@dataclass(frozen=True)
class RandomWeights(Attack):
    """Does not train: uploads Gaussian weights.

    Their standard deviation is `strength`.
    """

    strength: float = 1.0
    """Standard deviation of the weights."""

    def trains_in(self, round_number: int, rounds: int) -> bool:
        return False

    def poison(self, context: AttackContext) -> StateDict:
        model = dict(context.received_model)
        for name in trained_keys(context.server_context.module):
            random_tensor = torch.randn(model[name].shape, generator=context.generator)
            model[name] = self.strength * random_tensor.to(model[name])
        return model
