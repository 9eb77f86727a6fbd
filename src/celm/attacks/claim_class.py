"""A client that knows head evidence, and adds to its head what makes it claim classes of which it has no samples.

    a_k  = strength * n * r_k    for every forged class k, 0 for the others        n: mean norm of its own row changes
    W_k <- W_k + a_k - mean over all classes of a

    shared    r_k is a Gaussian direction, the same for all attackers of a run and in all rounds
    grow      r_k is the direction of the received row k
    bias      b_k changes in place of W_k; r_k = 1, and n is the mean size of its own bias changes

The mean is subtracted, so the changes still sum to 0 over classes, and the noise level that head evidence reads off
that sum is as in honest training. Only `shared` lets two attackers agree with each other: set `partner`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from celm.attacks.attack import AttackContext
from celm.attacks.class_forgery import ClassForgery
from celm.base.errors import CelmError
from celm.base.randomness import make_generator
from celm.models.state_dict import StateDict
from celm.rules.rule import ServerContext


@dataclass(frozen=True)
class ClaimClass(ClassForgery):
    """Adds to head rows of classes that it lacks.

    It knows head evidence, and keeps the sum of changes over classes as honest training leaves it.
    """

    strength: float = 1.0
    """Size of what is added to a row, in units of the mean change of its rows."""
    rows: Literal["shared", "grow", "bias"] = "shared"
    """The addition: `shared`, a random direction that all attackers of the run share; `grow`, the received row's own
    direction; `bias`, to the bias in place of the row."""
    partner: str | None = None
    """A second client that makes the same attack."""

    @property
    def attackers(self) -> tuple[str, ...]:
        return (self.client,) if self.partner is None else (self.client, self.partner)

    def check(self, context: ServerContext, labels: Tensor) -> None:
        super().check(context, labels)
        if self.rows == "bias" and len(context.head) < 2:
            raise CelmError(
                "attack.rows: the model's head has no bias", "use attack.rows = 'shared' or 'grow'"
            )

    def poison(self, context: AttackContext) -> StateDict:
        forged_classes = self.forged_classes(context.server_context, context.labels)
        model = dict(context.trained_model)
        for name in context.server_context.head:
            tensor = model[name]
            if (tensor.ndim == 1) != (self.rows == "bias"):
                continue
            own_change = tensor - context.received_model[name]
            size = own_change.abs().mean() if tensor.ndim == 1 else own_change.norm(dim=1).mean()
            added = torch.zeros_like(tensor)
            added[forged_classes] = self.strength * size * self._directions(context, name)[forged_classes]
            model[name] = tensor + added - added.mean(0)
        return model

    def _directions(self, context: AttackContext, name: str) -> Tensor:
        """Return r_k of all classes."""
        directions = context.received_model[name]
        if self.rows == "bias":
            return torch.ones_like(directions)
        if self.rows == "shared":
            generator = make_generator(context.server_context.seed, "claimed rows", name)
            directions = torch.randn(*directions.shape, generator=generator).to(directions)
        norms: Tensor = directions.norm(dim=1, keepdim=True)
        return directions / norms.clamp_min(torch.finfo(norms.dtype).tiny)
