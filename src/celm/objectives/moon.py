"""MOON: features drawn to those of the global model and away from those of the client's last one.

    CE + μ mean_b -log( e^{cos(z, z_g)/τ} / (e^{cos(z, z_g)/τ} + e^{cos(z, z_p)/τ}) )

z are the features of the model in training, z_g of the delivered one, z_p of the one the client ended its last
round with, both frozen and in eval mode. A client's first round has no z_p and is cross-entropy alone.

Li, He, Song, "Model-contrastive federated learning", CVPR 2021. As there, the head is preceded by a projection
Linear(d, d) - ReLU - Linear(d, 256), whose outputs are the features; one previous model is kept.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, ClassVar

import torch
from pydantic import Field, NonNegativeInt
from torch import Tensor, nn
from torch.nn import functional as F

from celm.method.stacking import logits_of
from celm.models.anatomy import features, forward_with_features, linear_head, replace_head
from celm.models.state import state_of
from celm.objectives.networks import frozen
from celm.objectives.objective import Objective, Task


@dataclass(frozen=True)
class Previous:
    """The model a client ended its last round with."""

    model: Mapping[str, Tensor]


@dataclass(frozen=True)
class References:
    """The frozen networks of a round."""

    delivered: nn.Module
    previous: nn.Module


@dataclass(frozen=True)
class Moon(Objective[Previous]):
    """Cross-entropy and a contrast: features like the global model's, unlike the client's last."""

    memory_type: ClassVar[type | None] = Previous

    mu: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 1.0
    """μ, the weight of the contrast. The authors' default; best were 5 on CIFAR-10, 1 on CIFAR-100."""
    temperature: Annotated[float, Field(gt=0, allow_inf_nan=False)] = 0.5
    """τ."""
    projection: NonNegativeInt = 256
    """Outputs of the projection before the head; 0: no projection, the features are what enters the head."""

    @property
    def keeps_architecture(self) -> bool:
        return not self.projection

    def adapt(self, module: nn.Module, head: str) -> nn.Module:
        if not self.projection:
            return module
        old = linear_head(module, head)
        layers: OrderedDict[str, nn.Module] = OrderedDict(
            hidden=nn.Linear(old.in_features, old.in_features),
            relu=nn.ReLU(),
            projection=nn.Linear(old.in_features, self.projection),
            classifier=nn.Linear(self.projection, old.out_features),
        )
        return replace_head(module, head, nn.Sequential(layers).to(old.weight))

    def begin(self, task: Task[Previous]) -> References | None:
        if task.memory is None:
            return None
        return References(frozen(task.module), frozen(task.module, task.memory.model))

    def loss(
        self, task: Task[Previous], context: References | None, inputs: Tensor, labels: Tensor
    ) -> Tensor:
        if context is None:
            return F.cross_entropy(logits_of(task.module(inputs)), labels)
        outputs, own = forward_with_features(task.module, task.head, inputs)
        with torch.no_grad():
            towards = features(context.delivered, task.head, inputs)
            away = features(context.previous, task.head, inputs)
        loss = F.cross_entropy(logits_of(outputs), labels)
        return loss + self.mu * contrast(own, towards, away, self.temperature)

    def remember(self, task: Task[Previous], context: References | None, steps: int) -> Previous:
        return Previous(state_of(task.module))


def contrast(own: Tensor, towards: Tensor, away: Tensor, temperature: float) -> Tensor:
    """The contrastive loss of features `[B, d]`; log 2 where `towards` and `away` are the same."""
    own = own.flatten(1)
    similar = [F.cosine_similarity(own, other.flatten(1), dim=1) for other in (towards, away)]
    logits = torch.stack(similar, dim=1) / temperature
    return F.cross_entropy(logits, torch.zeros(len(own), dtype=torch.long, device=own.device))
