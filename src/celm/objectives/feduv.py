"""FedUV: uniform features, and probabilities that vary as on balanced data.

    CE + λ L_V + μ L_U                                    p [B, K] probabilities, z [B, d] inputs of the head
    L_V = mean_c max(0, γ - std_b p_bc),   γ = 1/√K       the deviation of one-hot rows, one per class
    L_U = mean_{b<b'} exp(-||z_b - z_b'||² / σ),          σ the median of the nonzero squared distances

Son, Kim, Chung, Shin, Kwak, "FedUV: uniformity and variance for heterogeneous federated learning", CVPR 2024.
Gradients go through σ, as in the authors' code. The code does not cover two cases. A batch of one sample has
neither pairs nor deviations, so its loss is cross-entropy alone. If all features are equal, L_U = 1.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any

import torch
from pydantic import Field
from torch import Tensor
from torch.nn import functional as F

from celm.core.model_stack import extract_logits
from celm.models.heads import forward_with_features
from celm.objectives.objective import LocalTask, Objective


@dataclass(frozen=True)
class FedUv(Objective[None]):
    """Cross-entropy, with regularisers of features and probabilities.

    The regularisers favour uniform features and varied probabilities.
    """

    variance: Annotated[float, Field(ge=0, allow_inf_nan=False)] | None = None
    """λ, the weight of L_V; default a quarter of the number of classes, the authors' 2.5 for ten."""
    uniformity: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 0.5
    """μ, the weight of L_U."""

    def loss(self, task: LocalTask[None], context: Any, inputs: Tensor, labels: Tensor) -> Tensor:
        outputs, features = forward_with_features(task.module, task.head, inputs)
        logits = extract_logits(outputs)
        loss = F.cross_entropy(logits, labels)
        if len(inputs) < 2:
            return loss
        weight = task.classes / 4 if self.variance is None else self.variance
        return loss + weight * variance_loss(logits) + self.uniformity * uniformity_loss(features.flatten(1))


def variance_loss(logits: Tensor) -> Tensor:
    """Return L_V of logits `[B, K]`."""
    target_std: float = logits.shape[1] ** -0.5
    return (target_std - logits.softmax(dim=1).std(dim=0)).relu().mean()


def uniformity_loss(features: Tensor) -> Tensor:
    """Return L_U of features `[B, d]`: 1 if all are equal, less if they are further apart."""
    distances = torch.pdist(features).square()
    nonzero_distances = distances[distances != 0]
    if not len(nonzero_distances):
        return distances.new_ones(())
    return (-distances / nonzero_distances.median()).exp().mean()
