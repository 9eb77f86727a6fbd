"""FedRS: a restricted softmax for clients that lack classes.

    s_c <- a_c s_c,   a_c = 1 if the client has class c, else α                    then cross-entropy
    soft:             a_c = α + (1 - α) n_c / max_c' n_c'                          n_c samples of class c

Li, Zhan, "FedRS: federated learning with restricted softmax for label distribution non-iid data", KDD 2021.
The hard version is the paper's, the soft version that of the authors' code (lxcnju/FedRepo). Their head has no
bias. Here the logit is scaled with its bias, so weight and bias of a missing class both learn α times as fast.
Label counts stay with the client; the tested model has no scales.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import torch
from pydantic import Field
from torch import Tensor
from torch.nn import functional as F

from celm.core.model_stack import extract_logits
from celm.objectives.objective import LocalTask, Objective


@dataclass(frozen=True)
class FedRs(Objective[None]):
    """Cross-entropy with scaled-down logits for classes the client lacks."""

    alpha: Annotated[float, Field(ge=0, le=1)] = 0.5
    """α, the scale of a missing class; 1 is plain training. The paper recommends 0.5."""
    soft: bool = False
    """Whether every class is scaled by its share of samples, as in the authors' code."""

    def start_round(self, task: LocalTask[None]) -> Tensor:
        """Return the scale of every class `[K]`."""
        counts = torch.bincount(task.labels, minlength=task.classes)
        if self.soft:
            return self.alpha + (1 - self.alpha) * counts / counts.max().clamp(min=1)
        return torch.where(counts > 0, 1.0, self.alpha)

    def loss(self, task: LocalTask[None], context: Tensor, inputs: Tensor, labels: Tensor) -> Tensor:
        logits = extract_logits(task.module(inputs))
        return F.cross_entropy(logits * context.to(logits.dtype), labels)
