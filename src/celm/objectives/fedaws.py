"""FedAwS: after averaging, the server moves the rows of the head apart.

    min_W  (1/K²) Σ_{c ≠ c'} max(0, ν - d_cc')²,   d_cc' = (1 - cos(w_c, w_c')) / 2          W [K, d]

by a few steps of SGD with momentum 0.9 from the averaged W. Clients train with cross-entropy. d is 1/2 for
orthogonal rows, and at most K / (2 (K - 1)) for all pairs at once.

Yu, Rawat, Menon, Kumar, "Federated learning with only positive labels", ICML 2020, in the form of the FedRS
authors' comparison (lxcnju/FedRepo). The original is for clients with a single class, which have no negatives to
train on, and repels a class from its nearest neighbours only.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar

import torch
from pydantic import Field
from torch import Tensor
from torch.nn import functional as F

from celm.base.errors import CelmError
from celm.models.state_dict import StateDict
from celm.objectives.cross_entropy import Plain
from celm.objectives.objective import ServerHook


@dataclass(frozen=True)
class FedAws(Plain):
    """Cross-entropy; the server moves the averaged class weights apart."""

    margin: Annotated[float, Field(gt=0, le=1)] = 0.8
    """ν, the distance up to which classes repel each other. FedRepo uses (ν, steps, lr) = (0.8, 30, 0.1)."""
    steps: Annotated[int, Field(ge=0)] = 30
    """Steps at the server in each round."""
    lr: Annotated[float, Field(gt=0, allow_inf_nan=False)] = 0.1
    """Step size at the server."""
    momentum: Annotated[float, Field(ge=0, lt=1)] = 0.9
    """Momentum at the server."""

    def server_hook(self, head: tuple[str, ...], trained: tuple[str, ...]) -> ServerHook[None]:
        return _SpreadoutHook(self, head)

    def spread_rows(self, weight: Tensor) -> Tensor:
        """Return the rows `[K, d]` moved apart."""
        rows = weight.detach().clone().requires_grad_()
        velocity = torch.zeros_like(rows)
        for _ in range(self.steps):
            (gradient,) = torch.autograd.grad(_spreadout_loss(rows, self.margin), rows)
            with torch.no_grad():
                velocity.mul_(self.momentum).add_(gradient)
                rows.sub_(velocity, alpha=self.lr)
        return rows.detach()


def _spreadout_loss(rows: Tensor, margin: float) -> Tensor:
    """Return the loss of rows `[K, d]`."""
    unit = F.normalize(rows, dim=1)
    shortfall = (margin - (1 - unit @ unit.T) / 2).relu().square()
    return (shortfall - shortfall.diag().diag()).sum() / len(rows) ** 2


class _SpreadoutHook(ServerHook[None]):
    """A hook, without state, that moves the rows of the averaged head apart."""

    state_type: ClassVar[type] = type(None)

    def __init__(self, settings: FedAws, head: tuple[str, ...]) -> None:
        self.settings = settings
        self.weight_names = [name for name in head if name.rpartition(".")[2] == "weight"]

    def init(self, model: StateDict) -> None:
        if not self.weight_names or any(model[name].ndim != 2 for name in self.weight_names):
            raise CelmError(
                "objective 'fedaws' needs a model with a linear head", "choose another objective or model"
            )

    def postprocess(self, state: None, model: StateDict) -> StateDict:
        return {**model, **{name: self.settings.spread_rows(model[name]) for name in self.weight_names}}
