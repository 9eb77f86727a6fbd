"""Cross-entropy.

f_i(w) = (1/n) Σ_j -log softmax(s(x_j; w))_{y_j}
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor
from torch.nn import functional as F

from celm.method.stacking import logits_of
from celm.objectives.objective import Objective, Task


@dataclass(frozen=True)
class Plain(Objective[None]):
    """Cross-entropy, nothing else."""

    def loss(self, task: Task[None], context: Any, inputs: Tensor, labels: Tensor) -> Tensor:
        return F.cross_entropy(logits_of(task.module(inputs)), labels)

    def gradients(self, task: Task[None], context: Any, inputs: Tensor, labels: Tensor) -> Sequence[Tensor]:
        if task.by_hand is not None and type(self).loss is Plain.loss:
            return task.by_hand.gradients(inputs, labels)
        return super().gradients(task, context, inputs, labels)
