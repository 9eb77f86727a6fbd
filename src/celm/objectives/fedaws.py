"""FedAwS: after averaging, the server spreads the rows of the head apart.

    min_W  (1/K²) Σ_{c ≠ c'} max(0, ν - d_cc')²,   d_cc' = (1 - cos(w_c, w_c')) / 2          W [K, d]

by a few steps of SGD with momentum 0.9 from the averaged W. Clients train with cross-entropy. d is 1/2 where rows
are orthogonal, and at best K / (2 (K - 1)) for all pairs together.

Yu, Rawat, Menon, Kumar, "Federated learning with only positive labels", ICML 2020, in the form of the FedRS
authors' comparison (lxcnju/FedRepo). The original is for clients of a single class, which have no negatives to
train on; there, a class is repelled from its nearest only.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar

import torch
from pydantic import Field
from torch import Tensor
from torch.nn import functional as F

from celm.base.errors import CelmError
from celm.models.state import StateDict
from celm.objectives.objective import ServerPart
from celm.objectives.plain import Plain


@dataclass(frozen=True)
class FedAws(Plain):
    """Cross-entropy; the server spreads the classes' weights apart after averaging."""

    margin: Annotated[float, Field(gt=0, le=1)] = 0.8
    """ν, the distance up to which classes repel each other. FedRepo has (ν, steps, lr) = (0.8, 30, 0.1)."""
    steps: Annotated[int, Field(ge=0)] = 30
    """The server's steps in each round."""
    lr: Annotated[float, Field(gt=0, allow_inf_nan=False)] = 0.1
    """The server's step size."""
    momentum: Annotated[float, Field(ge=0, lt=1)] = 0.9
    """The server's momentum."""

    def server(self, head: tuple[str, ...], trained: tuple[str, ...]) -> ServerPart[None]:
        return SpreadHead(self, head)

    def spread(self, weight: Tensor) -> Tensor:
        """The rows `[K, d]`, further apart."""
        rows = weight.detach().clone().requires_grad_()
        velocity = torch.zeros_like(rows)
        for _ in range(self.steps):
            (gradient,) = torch.autograd.grad(crowding(rows, self.margin), rows)
            with torch.no_grad():
                velocity.mul_(self.momentum).add_(gradient)
                rows.sub_(velocity, alpha=self.lr)
        return rows.detach()


def crowding(rows: Tensor, margin: float) -> Tensor:
    """The loss of rows `[K, d]`."""
    unit = F.normalize(rows, dim=1)
    lack = (margin - (1 - unit @ unit.T) / 2).relu().square()
    return (lack - lack.diag().diag()).sum() / len(rows) ** 2


class SpreadHead(ServerPart[None]):
    """Remembers nothing: every round it begins from what was averaged."""

    state_type: ClassVar[type] = type(None)

    def __init__(self, settings: FedAws, head: tuple[str, ...]) -> None:
        self.settings = settings
        self.weights = [name for name in head if name.rpartition(".")[2] == "weight"]

    def init(self, model: StateDict) -> None:
        if not self.weights or any(model[name].ndim != 2 for name in self.weights):
            raise CelmError("objective 'fedaws' needs a linear head", "choose another objective or model")

    def adjust(self, state: None, model: StateDict) -> StateDict:
        return {**model, **{name: self.settings.spread(model[name]) for name in self.weights}}
