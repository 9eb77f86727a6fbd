"""Lists of tensors, one a parameter, as one vector."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from celm.objectives.objective import Task


def names_of(task: Task[Any]) -> list[str]:
    """The names of the task's parameters, in their order."""
    names = {id(parameter): name for name, parameter in task.module.named_parameters()}
    return [names[id(parameter)] for parameter in task.parameters]


def snapshot(task: Task[Any]) -> list[Tensor]:
    """Copies of the parameters as they are now; at the beginning of a round, as they were delivered."""
    return [parameter.detach().clone() for parameter in task.parameters]


def plus(tensors: Sequence[Tensor], others: Sequence[Tensor], scale: float = 1.0) -> list[Tensor]:
    """`tensors + scale * others`."""
    return list(torch._foreach_add(list(tensors), list(others), alpha=scale))


def length(tensors: Sequence[Tensor]) -> Tensor:
    """The Euclidean norm over all values."""
    total: Tensor = torch.linalg.vector_norm(torch.stack(torch._foreach_norm(list(tensors))))
    return total


def clipped(tensors: Sequence[Tensor], limit: float) -> list[Tensor]:
    """Shortened to length `limit` where longer; 0 leaves them as they are."""
    if not limit:
        return list(tensors)
    factor = (limit / (length(tensors) + 1e-6)).clamp(max=1)
    return [tensor * factor for tensor in tensors]
