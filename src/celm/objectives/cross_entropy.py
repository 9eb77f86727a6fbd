"""Cross-entropy.

f_i(w) = (1/n) Σ_j -log softmax(s(x_j; w))_{y_j}
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor
from torch.nn import functional as F

from celm.core.model_stack import extract_logits
from celm.objectives.objective import LocalTask, Objective


@dataclass(frozen=True)
class Plain(Objective[None]):
    """Cross-entropy without any regularisation."""

    def loss(self, task: LocalTask[None], context: Any, inputs: Tensor, labels: Tensor) -> Tensor:
        return F.cross_entropy(extract_logits(task.module(inputs)), labels)

    def gradients(
        self, task: LocalTask[None], context: Any, inputs: Tensor, labels: Tensor
    ) -> Sequence[Tensor]:
        if task.relu_mlp is not None and type(self).loss is Plain.loss:
            return task.relu_mlp.gradients(inputs, labels)
        return super().gradients(task, context, inputs, labels)
