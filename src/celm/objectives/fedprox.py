"""FedProx: a pull towards the delivered model.

    f_i(w) + (μ/2) ||w - w_g||²,   hence   g <- g + μ (w - w_g)          over all trained parameters

Li, Sahu, Zaheer, Sanjabi, Talwalkar, Smith, "Federated optimization in heterogeneous networks", MLSys 2020.
Their grid for μ is {.001, .01, .1, .5, 1}; no value is best everywhere. Partial work of stragglers is left out.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

import torch
from pydantic import Field
from torch import Tensor

from celm.objectives.objective import Task
from celm.objectives.plain import Plain
from celm.objectives.vectors import plus, snapshot


@dataclass(frozen=True)
class FedProx(Plain):
    """Cross-entropy and a quadratic pull towards the delivered model."""

    mu: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 0.01
    """μ, the strength of the pull; 0 is plain training. What mostly does no harm, from the authors' grid."""

    def begin(self, task: Task[None]) -> list[Tensor]:
        return snapshot(task)

    def gradients(
        self, task: Task[None], context: list[Tensor], inputs: Tensor, labels: Tensor
    ) -> Sequence[Tensor]:
        gradients = super().gradients(task, context, inputs, labels)
        with torch.no_grad():
            drift = plus(task.parameters, context, -1)
            return plus(gradients, drift, self.mu)
