"""FedSOL: each step uses the local gradient at the point nearby where the proximal loss is worst.

    L_p = KL( softmax(s_g/T) || softmax(s/T) )              batch mean; s_g logits of the received model
    adaptive:  e = ρ Λ ∘ g_p / ||g_p||,   g_p = ∇L_p(w)     Λ = |w - w_g|, each tensor of unit length along dim 0
    fixed:     e = ρ g_p / ||g_p||
    w <- w - lr ∇f(w + e)                                   on the same batch

So local training does not undo what the global model learned. In the first step of a round w = w_g and e = 0.

Lee, Jeong, Kim, Oh, Yun, "FedSOL: stabilized orthogonal learning with proximal restrictions in federated
learning", CVPR 2024. As in the authors' code, T = 3 without a factor T², and all layers are perturbed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.nn import functional as F

from celm.core.model_stack import extract_logits
from celm.objectives.cross_entropy import Plain
from celm.objectives.objective import LocalTask
from celm.objectives.training_ops import frozen_copy, list_norm, perturbed, preserved_buffers

_NORM_EPS = 1e-12


@dataclass(frozen=True)
class _ProximalAnchor:
    """The received model: a frozen network and its parameters."""

    network: nn.Module
    start: list[Tensor]


@dataclass(frozen=True)
class FedSol(Plain):
    """Cross-entropy at the point nearby that least fits the global model."""

    rho: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 1.0
    """ρ, the distance of that point; the authors' value."""
    adaptive: bool = True
    """Whether parameters that moved further in this round are perturbed more; the authors' main version."""
    temperature: Annotated[float, Field(gt=0, allow_inf_nan=False)] = 3.0
    """T of the proximal loss."""

    def start_round(self, task: LocalTask[None]) -> _ProximalAnchor:
        return _ProximalAnchor(frozen_copy(task.module), task.copy_parameters())

    def gradients(
        self, task: LocalTask[None], context: _ProximalAnchor, inputs: Tensor, labels: Tensor
    ) -> Sequence[Tensor]:
        perturbation = self.compute_perturbation(
            task, context, self.proximal_gradients(task, context, inputs)
        )
        with perturbed(task.parameters, perturbation), preserved_buffers(task.module):
            return super().gradients(task, context, inputs, labels)

    def proximal_gradients(
        self, task: LocalTask[None], context: _ProximalAnchor, inputs: Tensor
    ) -> Sequence[Tensor]:
        """Return g_p, from the gradient of L_p in the logits, which is (p - p_g) / (T B).

        Autograd of L_p would leave rounding noise if p = p_g, and normalisation would turn that noise into a
        perturbation of full length.
        """
        logits = extract_logits(task.module(inputs))
        with torch.no_grad():
            target = (extract_logits(context.network(inputs)) / self.temperature).softmax(dim=1)
            logit_gradient = ((logits / self.temperature).softmax(dim=1) - target) / (
                self.temperature * len(inputs)
            )
        return torch.autograd.grad(
            logits, task.parameters, logit_gradient, allow_unused=True, materialize_grads=True
        )

    @torch.no_grad()
    def compute_perturbation(
        self, task: LocalTask[None], context: _ProximalAnchor, gradients: Sequence[Tensor]
    ) -> list[Tensor]:
        """Return e, given the gradients of L_p."""
        factor = self.rho / (list_norm(gradients) + _NORM_EPS)
        if not self.adaptive:
            return [factor * gradient for gradient in gradients]
        pairs = zip(task.parameters, context.start, gradients, strict=True)
        return [
            F.normalize((parameter - start).abs(), dim=0) * gradient * factor
            for parameter, start, gradient in pairs
        ]
