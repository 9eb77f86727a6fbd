"""FedRS: a restricted softmax for clients that lack classes.

    s_c <- a_c s_c,   a_c = 1 if the client has class c, else α                    then cross-entropy
    soft:             a_c = α + (1 - α) n_c / max_c' n_c'                          n_c samples of class c

Li, Zhan, "FedRS: federated learning with restricted softmax for label distribution non-iid data", KDD 2021.
The hard version is the paper's, the soft one that of the authors' code (lxcnju/FedRepo). Their head has no
bias; here the whole logit is scaled, bias included, so that a missing class learns α times as fast in both.
Label counts stay with the client; the model that is judged has no scales.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import torch
from pydantic import Field
from torch import Tensor
from torch.nn import functional as F

from celm.method.stacking import logits_of
from celm.objectives.objective import Objective, Task


@dataclass(frozen=True)
class FedRs(Objective[None]):
    """Cross-entropy in which the logits of classes the client lacks are scaled down."""

    alpha: Annotated[float, Field(ge=0, le=1)] = 0.5
    """α, the scale of a missing class; 1 is plain training. The paper recommends 0.5."""
    soft: bool = False
    """Scale every class by its share of samples, as the authors' code does."""

    def begin(self, task: Task[None]) -> Tensor:
        """The scale of every class `[K]`."""
        counts = torch.bincount(task.labels, minlength=task.classes)
        if self.soft:
            return self.alpha + (1 - self.alpha) * counts / counts.max().clamp(min=1)
        return torch.where(counts > 0, 1.0, self.alpha)

    def loss(self, task: Task[None], context: Tensor, inputs: Tensor, labels: Tensor) -> Tensor:
        logits = logits_of(task.module(inputs))
        return F.cross_entropy(logits * context.to(logits.dtype), labels)
