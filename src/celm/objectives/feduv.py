"""FedUV: uniform features, and probabilities that vary as those of balanced data would.

    CE + λ L_V + μ L_U                                    p [B, K] probabilities, z [B, d] what enters the head
    L_V = mean_c max(0, γ - std_b p_bc),   γ = 1/√K       the deviation that one-hot rows, one a class, have
    L_U = mean_{b<b'} exp(-||z_b - z_b'||² / σ),          σ the median of the squared distances that are not 0

Son, Kim, Chung, Shin, Kwak, "FedUV: uniformity and variance for heterogeneous federated learning", CVPR 2024.
Gradients go through σ, as in the authors' code. It has no answer to two cases that occur: a batch of one has
neither pairs nor deviations, so it is cross-entropy alone; features that are all equal have L_U = 1.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any

import torch
from pydantic import Field
from torch import Tensor
from torch.nn import functional as F

from celm.method.stacking import logits_of
from celm.models.anatomy import forward_with_features
from celm.objectives.objective import Objective, Task


@dataclass(frozen=True)
class FedUv(Objective[None]):
    """Cross-entropy, with features kept uniform and probabilities kept varied."""

    variance: Annotated[float, Field(ge=0, allow_inf_nan=False)] | None = None
    """λ, the weight of L_V; by default a quarter of the number of classes, the authors' 2.5 for ten."""
    uniformity: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 0.5
    """μ, the weight of L_U."""

    def loss(self, task: Task[None], context: Any, inputs: Tensor, labels: Tensor) -> Tensor:
        outputs, features = forward_with_features(task.module, task.head, inputs)
        logits = logits_of(outputs)
        loss = F.cross_entropy(logits, labels)
        if len(inputs) < 2:
            return loss
        weight = task.classes / 4 if self.variance is None else self.variance
        return loss + weight * lack_of_variance(logits) + self.uniformity * crowding(features.flatten(1))


def lack_of_variance(logits: Tensor) -> Tensor:
    """L_V of logits `[B, K]`."""
    wanted: float = logits.shape[1] ** -0.5
    return (wanted - logits.softmax(dim=1).std(dim=0)).relu().mean()


def crowding(features: Tensor) -> Tensor:
    """L_U of features `[B, d]`: 1 where all are equal, less the further they are apart."""
    distances = torch.pdist(features).square()
    apart = distances[distances != 0]
    if not len(apart):
        return distances.new_ones(())
    return (-distances / apart.median()).exp().mean()
