"""FedSAM: each step descends along the gradient of the worst point nearby.

    SAM:   e = ρ g / ||g||                                 g = ∇f(w); one norm over all parameters
    ASAM:  e = ρ T² g / ||T g||,   T = |w| + η             elementwise; T = 1 for biases
    w <- w - lr ∇f(w + e)                                  on the same batch

Qu, Li, Duan, Liu, Tang, Lu, "Generalized federated learning via sharpness aware minimization", ICML 2022;
Caldarola, Caputo, Ciccone, "Improving generalization in federated learning by seeking flat minima", ECCV 2022.
SAM is Foret et al., ICLR 2021; ASAM Kwon et al., ICML 2021. BatchNorm's statistics are those of the first pass.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any

import torch
from pydantic import Field
from torch import Tensor

from celm.objectives.networks import kept_buffers, moved_by
from celm.objectives.objective import Task
from celm.objectives.plain import Plain
from celm.objectives.vectors import length, names_of

TINY = 1e-16


@dataclass(frozen=True)
class FedSam(Plain):
    """Cross-entropy at the worst point nearby (sharpness-aware)."""

    rho: Annotated[float, Field(ge=0, allow_inf_nan=False)] | None = None
    """ρ, how far away that point is; by default 0.1, or 0.7 if adaptive, as Caldarola et al. on CIFAR-10."""
    adaptive: bool = False
    """ASAM: further for greater weights."""
    eta: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 0.2
    """η of ASAM; of no effect otherwise."""

    def gradients(self, task: Task[None], context: Any, inputs: Tensor, labels: Tensor) -> Sequence[Tensor]:
        first = super().gradients(task, context, inputs, labels)
        with moved_by(task.parameters, self.ascent(task, first)), kept_buffers(task.module):
            return super().gradients(task, context, inputs, labels)

    @torch.no_grad()
    def ascent(self, task: Task[None], gradients: Sequence[Tensor]) -> list[Tensor]:
        """e, from the gradients at w."""
        rho = self.rho if self.rho is not None else 0.7 if self.adaptive else 0.1
        if not self.adaptive:
            return list(torch._foreach_mul(list(gradients), rho / (length(gradients) + TINY)))
        scales = [
            parameter.abs() + self.eta if "weight" in name else torch.ones_like(parameter)
            for name, parameter in zip(names_of(task), task.parameters, strict=True)
        ]
        scaled = list(torch._foreach_mul(list(gradients), scales))
        factor = rho / (length(scaled) + TINY)
        return [factor * scale * gradient for scale, gradient in zip(scales, scaled, strict=True)]
