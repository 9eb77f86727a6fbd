"""A client without data that trains on random images.

    x_c ~ N(0, I)  for every class c, once for the whole run
    w_i = w_received after `strength` steps of gradient descent, of size `rate`, on the cross-entropy of (x_c, c)

A server without access to data cannot tell whether a class was learned from real samples.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import Annotated

import torch
from pydantic import Field
from torch.nn.functional import cross_entropy

from celm.attacks.attack import Attack, AttackContext
from celm.base.randomness import make_generator
from celm.models.state_dict import StateDict, get_state, load_state


@dataclass(frozen=True)
class InventData(Attack):
    """Has no data: trains on one image of noise for each class."""

    strength: Annotated[float, Field(ge=0, le=100_000)] = 30.0
    """Steps per round."""
    rate: Annotated[float, Field(gt=0)] = 0.03
    """Step size."""

    def trains_in(self, round_number: int, rounds: int) -> bool:
        return False

    @torch.enable_grad()
    def poison(self, context: AttackContext) -> StateDict:
        server_context = context.server_context
        module = copy.deepcopy(server_context.module)
        received = context.received_model
        load_state(module, {**get_state(module), **received})
        image_generator = make_generator(server_context.seed, "invented", self.client)
        images = torch.randn(server_context.classes, *server_context.input_shape, generator=image_generator)
        parameter = next(module.parameters())
        images, labels = images.to(parameter), torch.arange(server_context.classes, device=parameter.device)
        module.eval()  # dropout would draw from the global random stream
        optimizer = torch.optim.SGD(module.parameters(), lr=self.rate)
        for _ in range(round(self.strength)):
            optimizer.zero_grad()
            cross_entropy(module(images), labels).backward()  # type: ignore[no-untyped-call]
            optimizer.step()
        trained = get_state(module)
        return {name: trained[name] for name in received}
