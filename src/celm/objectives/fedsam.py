"""FedSAM: each step uses the gradient at the worst point nearby.

    SAM:   e = ρ g / ||g||                                 g = ∇f(w); one norm over all parameters
    ASAM:  e = ρ T² g / ||T g||,   T = |w| + η             elementwise; T = 1 for biases
    w <- w - lr ∇f(w + e)                                  on the same batch

Qu, Li, Duan, Liu, Tang, Lu, "Generalized federated learning via sharpness aware minimization", ICML 2022;
Caldarola, Caputo, Ciccone, "Improving generalization in federated learning by seeking flat minima", ECCV 2022.
SAM is Foret et al., ICLR 2021; ASAM is Kwon et al., ICML 2021. BatchNorm keeps the statistics of the first pass.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any

import torch
from pydantic import Field
from torch import Tensor

from celm.objectives.cross_entropy import Plain
from celm.objectives.objective import LocalTask
from celm.objectives.training_ops import list_norm, perturbed, preserved_buffers

_NORM_EPS = 1e-16


@dataclass(frozen=True)
class FedSam(Plain):
    """Cross-entropy at the worst point nearby (sharpness-aware)."""

    rho: Annotated[float, Field(ge=0, allow_inf_nan=False)] | None = None
    """ρ, the distance of that point; default 0.1, or 0.7 if adaptive, as Caldarola et al. on CIFAR-10."""
    adaptive: bool = False
    """Whether larger weights are perturbed further (ASAM)."""
    eta: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 0.2
    """η of ASAM; unused otherwise."""

    def gradients(
        self, task: LocalTask[None], context: Any, inputs: Tensor, labels: Tensor
    ) -> Sequence[Tensor]:
        local_gradients = super().gradients(task, context, inputs, labels)
        with (
            perturbed(task.parameters, self.compute_perturbation(task, local_gradients)),
            preserved_buffers(task.module),
        ):
            return super().gradients(task, context, inputs, labels)

    @torch.no_grad()
    def compute_perturbation(self, task: LocalTask[None], gradients: Sequence[Tensor]) -> list[Tensor]:
        """Return e, given the gradients at w."""
        rho = self.rho if self.rho is not None else 0.7 if self.adaptive else 0.1
        if not self.adaptive:
            return list(torch._foreach_mul(list(gradients), rho / (list_norm(gradients) + _NORM_EPS)))
        scales = [
            parameter.abs() + self.eta if "weight" in name else torch.ones_like(parameter)
            for name, parameter in zip(task.parameter_names, task.parameters, strict=True)
        ]
        scaled_gradients = list(torch._foreach_mul(list(gradients), scales))
        factor = rho / (list_norm(scaled_gradients) + _NORM_EPS)
        return [factor * scale * gradient for scale, gradient in zip(scales, scaled_gradients, strict=True)]
