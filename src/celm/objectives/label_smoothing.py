"""Any objective with smoothed labels.

    f + ε (mean_k -log p_k + log p_y)        p = softmax of the logits, y the label

If f is a cross-entropy, this is the cross-entropy with (1 - ε) y + ε / K in place of y.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from celm.core.model_stack import extract_logits
from celm.objectives.objective import AnyObjective, LocalTask, Objective


@dataclass(frozen=True)
class LabelSmoothing(Objective[Any]):
    """The loss of `inner`, plus the difference that smoothed labels make."""

    inner: AnyObjective
    smoothing: float

    def start_round(self, task: LocalTask[Any]) -> Any:
        return self.inner.start_round(task)

    def loss(self, task: LocalTask[Any], context: Any, inputs: Tensor, labels: Tensor) -> Tensor:
        return self.inner.loss(task, context, inputs, labels) + self._smoothing_term(task, inputs, labels)

    def gradients(
        self, task: LocalTask[Any], context: Any, inputs: Tensor, labels: Tensor
    ) -> Sequence[Tensor]:
        inner_gradients = self.inner.gradients(task, context, inputs, labels)
        smoothing_gradients = torch.autograd.grad(
            self._smoothing_term(task, inputs, labels),
            task.parameters,
            allow_unused=True,
            materialize_grads=True,
        )
        return [
            inner + smoothing for inner, smoothing in zip(inner_gradients, smoothing_gradients, strict=True)
        ]

    def extra_tensors(self, task: LocalTask[Any], context: Any, steps: int) -> Mapping[str, Tensor]:
        return self.inner.extra_tensors(task, context, steps)

    def next_client_state(self, task: LocalTask[Any], context: Any, steps: int) -> Any:
        return self.inner.next_client_state(task, context, steps)

    def _smoothing_term(self, task: LocalTask[Any], inputs: Tensor, labels: Tensor) -> Tensor:
        log_p = F.log_softmax(extract_logits(task.module(inputs)), dim=1)
        label_log_p = log_p.gather(1, labels.view(-1, 1)).squeeze(1)
        return self.smoothing * (label_log_p - log_p.mean(dim=1)).mean()
