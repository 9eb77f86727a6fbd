"""Any objective with smoothed labels.

    f + ε (mean_k -log p_k + log p_y)        p = softmax of the logits, y the label

Where f is a cross-entropy, this is the cross-entropy with (1 - ε) y + ε / K in place of y.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from celm.method.stacking import logits_of
from celm.objectives.objective import AnyObjective, Objective, Task


@dataclass(frozen=True)
class Smoothed(Objective[Any]):
    """What `inner` minimises, plus the difference that smooth labels make."""

    inner: AnyObjective
    smoothing: float

    def begin(self, task: Task[Any]) -> Any:
        return self.inner.begin(task)

    def loss(self, task: Task[Any], context: Any, inputs: Tensor, labels: Tensor) -> Tensor:
        return self.inner.loss(task, context, inputs, labels) + self.difference(task, inputs, labels)

    def gradients(self, task: Task[Any], context: Any, inputs: Tensor, labels: Tensor) -> Sequence[Tensor]:
        own = self.inner.gradients(task, context, inputs, labels)
        more = torch.autograd.grad(
            self.difference(task, inputs, labels),
            task.parameters,
            allow_unused=True,
            materialize_grads=True,
        )
        return [one + other for one, other in zip(own, more, strict=True)]

    def extras(self, task: Task[Any], context: Any, steps: int) -> Mapping[str, Tensor]:
        return self.inner.extras(task, context, steps)

    def remember(self, task: Task[Any], context: Any, steps: int) -> Any:
        return self.inner.remember(task, context, steps)

    def difference(self, task: Task[Any], inputs: Tensor, labels: Tensor) -> Tensor:
        log_p = F.log_softmax(logits_of(task.module(inputs)), dim=1)
        of_label = log_p.gather(1, labels.view(-1, 1)).squeeze(1)
        return self.smoothing * (of_label - log_p.mean(dim=1)).mean()
