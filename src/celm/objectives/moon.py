"""MOON: features are pulled towards those of the global model and away from those of the client's last model.

    CE + μ mean_b -log( e^{cos(z, z_g)/τ} / (e^{cos(z, z_g)/τ} + e^{cos(z, z_p)/τ}) )

z are features of the model in training, z_g of the received model, z_p of the client's model at the end of its last
round. The last two models are frozen and in eval mode. A client's first round has no z_p: its loss is cross-entropy.

Li, He, Song, "Model-contrastive federated learning", CVPR 2021. As in the paper, a projection
Linear(d, d) - ReLU - Linear(d, 256) precedes the head, its outputs are the features, and one previous model is kept.
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

from celm.core.model_stack import extract_logits
from celm.models.heads import extract_features, forward_with_features, get_linear_head, replace_head
from celm.models.state_dict import get_state
from celm.objectives.objective import LocalTask, Objective
from celm.objectives.training_ops import frozen_copy


@dataclass(frozen=True)
class MoonState:
    """The client's model at the end of its last round."""

    model: Mapping[str, Tensor]


@dataclass(frozen=True)
class _ReferenceModels:
    """The frozen networks of a round."""

    global_model: nn.Module
    previous_model: nn.Module


@dataclass(frozen=True)
class Moon(Objective[MoonState]):
    """Cross-entropy and a contrast of the features with those of two models.

    Features are pulled towards those of the global model and away from those of the client's last model.
    """

    client_state_type: ClassVar[type | None] = MoonState

    mu: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 1.0
    """μ, the weight of the contrast; the authors' default. Their best were 5 on CIFAR-10 and 1 on CIFAR-100."""
    temperature: Annotated[float, Field(gt=0, allow_inf_nan=False)] = 0.5
    """τ, the temperature of the contrast."""
    projection: NonNegativeInt = 256
    """Outputs of the projection before the head; 0: no projection, the features are the inputs of the head."""

    @property
    def keeps_architecture(self) -> bool:
        return not self.projection

    def adapt_model(self, module: nn.Module, head: str) -> nn.Module:
        if not self.projection:
            return module
        old_head = get_linear_head(module, head)
        layers: OrderedDict[str, nn.Module] = OrderedDict(
            hidden=nn.Linear(old_head.in_features, old_head.in_features),
            relu=nn.ReLU(),
            projection=nn.Linear(old_head.in_features, self.projection),
            classifier=nn.Linear(self.projection, old_head.out_features),
        )
        return replace_head(module, head, nn.Sequential(layers).to(old_head.weight))

    def start_round(self, task: LocalTask[MoonState]) -> _ReferenceModels | None:
        if task.client_state is None:
            return None
        return _ReferenceModels(frozen_copy(task.module), frozen_copy(task.module, task.client_state.model))

    def loss(
        self, task: LocalTask[MoonState], context: _ReferenceModels | None, inputs: Tensor, labels: Tensor
    ) -> Tensor:
        if context is None:
            return F.cross_entropy(extract_logits(task.module(inputs)), labels)
        outputs, client_features = forward_with_features(task.module, task.head, inputs)
        with torch.no_grad():
            global_features = extract_features(context.global_model, task.head, inputs)
            previous_features = extract_features(context.previous_model, task.head, inputs)
        loss = F.cross_entropy(extract_logits(outputs), labels)
        return loss + self.mu * contrastive_loss(
            client_features, global_features, previous_features, self.temperature
        )

    def next_client_state(
        self, task: LocalTask[MoonState], context: _ReferenceModels | None, steps: int
    ) -> MoonState:
        return MoonState(get_state(task.module))


def contrastive_loss(
    client_features: Tensor, global_features: Tensor, previous_features: Tensor, temperature: float
) -> Tensor:
    """Return the contrastive loss of features `[B, d]`; log 2 if both reference models give the same features."""
    client_features = client_features.flatten(1)
    similarities = [
        F.cosine_similarity(client_features, other.flatten(1), dim=1)
        for other in (global_features, previous_features)
    ]
    logits = torch.stack(similarities, dim=1) / temperature
    return F.cross_entropy(
        logits, torch.zeros(len(client_features), dtype=torch.long, device=client_features.device)
    )
