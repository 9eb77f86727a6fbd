"""FedSOL: descends the local loss where the proximal loss is worst nearby.

    L_p = KL( softmax(s_g/T) || softmax(s/T) )              batch mean; s_g logits of the delivered model
    adaptive:  e = ρ Λ ∘ g_p / ||g_p||,   g_p = ∇L_p(w)     Λ = |w - w_g|, each tensor of unit length along dim 0
    fixed:     e = ρ g_p / ||g_p||
    w <- w - lr ∇f(w + e)                                   on the same batch

So local learning is kept from undoing what the federation knows. In the first step of a round w = w_g and e = 0.

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

from celm.method.stacking import logits_of
from celm.objectives.networks import frozen, kept_buffers, moved_by
from celm.objectives.objective import Task
from celm.objectives.plain import Plain
from celm.objectives.vectors import length, snapshot

TINY = 1e-12


@dataclass(frozen=True)
class Anchor:
    """The delivered model: as a frozen network, and its parameters."""

    network: nn.Module
    start: list[Tensor]


@dataclass(frozen=True)
class FedSol(Plain):
    """Cross-entropy where agreement with the global model is worst nearby (orthogonal learning)."""

    rho: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 1.0
    """ρ, how far away that point is; the authors' value."""
    adaptive: bool = True
    """Perturb a parameter the more, the further it has moved in this round; the authors' main version."""
    temperature: Annotated[float, Field(gt=0, allow_inf_nan=False)] = 3.0
    """T."""

    def begin(self, task: Task[None]) -> Anchor:
        return Anchor(frozen(task.module), snapshot(task))

    def gradients(
        self, task: Task[None], context: Anchor, inputs: Tensor, labels: Tensor
    ) -> Sequence[Tensor]:
        ascent = self.ascent(task, context, self.proximal(task, context, inputs))
        with moved_by(task.parameters, ascent), kept_buffers(task.module):
            return super().gradients(task, context, inputs, labels)

    def proximal(self, task: Task[None], context: Anchor, inputs: Tensor) -> Sequence[Tensor]:
        """g_p, through the gradient of L_p in the logits, which is (p - p_g) / (T B).

        Automatic differentiation of L_p would leave rounding noise where p = p_g, and normalisation would make
        a perturbation of full length out of it.
        """
        logits = logits_of(task.module(inputs))
        with torch.no_grad():
            wanted = (logits_of(context.network(inputs)) / self.temperature).softmax(dim=1)
            slope = ((logits / self.temperature).softmax(dim=1) - wanted) / (self.temperature * len(inputs))
        return torch.autograd.grad(logits, task.parameters, slope, allow_unused=True, materialize_grads=True)

    @torch.no_grad()
    def ascent(self, task: Task[None], context: Anchor, gradients: Sequence[Tensor]) -> list[Tensor]:
        """e, from the gradients of L_p."""
        factor = self.rho / (length(gradients) + TINY)
        if not self.adaptive:
            return [factor * gradient for gradient in gradients]
        pairs = zip(task.parameters, context.start, gradients, strict=True)
        return [
            F.normalize((parameter - start).abs(), dim=0) * gradient * factor
            for parameter, start, gradient in pairs
        ]
