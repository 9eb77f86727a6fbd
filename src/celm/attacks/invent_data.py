"""A client without data that trains on pictures it made up.

    x_c ~ N(0, I)  for every class c, once for the whole run
    w_i = w_delivered after `strength` steps of gradient descent, of size `rate`, on the cross-entropy of (x_c, c)

Whoever sees no data cannot tell whether a class was learned from samples that are real.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import Annotated

import torch
from pydantic import Field
from torch.nn.functional import cross_entropy

from celm.attacks.attack import Attack, Upload
from celm.base.randomness import generator
from celm.models.state import StateDict, load_state, state_of


@dataclass(frozen=True)
class InventData(Attack):
    """Has no data: trains on one picture of noise for each class."""

    strength: Annotated[float, Field(ge=0, le=100_000)] = 30.0
    """Steps in a round."""
    rate: Annotated[float, Field(gt=0)] = 0.03
    """Their size."""

    def trains(self, number: int, rounds: int) -> bool:
        return False

    @torch.enable_grad()
    def upload(self, upload: Upload) -> StateDict:
        federation = upload.federation
        module = copy.deepcopy(federation.module)
        load_state(module, upload.delivered)
        drawn = generator(federation.seed, "invented", self.client)
        pictures = torch.randn(federation.classes, *federation.input_shape, generator=drawn)
        like = next(module.parameters())
        pictures, labels = pictures.to(like), torch.arange(federation.classes, device=like.device)
        module.eval()  # dropout would draw from a stream that others use
        descent = torch.optim.SGD(module.parameters(), lr=self.rate)
        for _ in range(round(self.strength)):
            descent.zero_grad()
            cross_entropy(module(pictures), labels).backward()  # type: ignore[no-untyped-call]
            descent.step()
        return state_of(module)
