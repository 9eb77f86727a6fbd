"""FedProx: a quadratic pull towards the received model.

    f_i(w) + (μ/2) ||w - w_g||²,   hence   g <- g + μ (w - w_g)          over all trained parameters

Li, Sahu, Zaheer, Sanjabi, Talwalkar, Smith, "Federated optimization in heterogeneous networks", MLSys 2020.
Their grid for μ is {.001, .01, .1, .5, 1}; no value is best on all datasets. Partial work of stragglers is not
implemented.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

import torch
from pydantic import Field
from torch import Tensor

from celm.objectives.cross_entropy import Plain
from celm.objectives.objective import LocalTask
from celm.objectives.training_ops import add_scaled_lists


@dataclass(frozen=True)
class FedProx(Plain):
    """Cross-entropy and a quadratic pull towards the received model."""

    mu: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 0.01
    """μ, the strength of the pull; 0 is plain training. The default rarely harms on the authors' grid."""

    def start_round(self, task: LocalTask[None]) -> list[Tensor]:
        return task.copy_parameters()

    def gradients(
        self, task: LocalTask[None], context: list[Tensor], inputs: Tensor, labels: Tensor
    ) -> Sequence[Tensor]:
        gradients = super().gradients(task, context, inputs, labels)
        with torch.no_grad():
            drift = add_scaled_lists(task.parameters, context, -1)
            return add_scaled_lists(gradients, drift, self.mu)
