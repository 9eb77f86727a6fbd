"""Local training: mini-batch SGD over a client's samples.

    v <- μ v + (g + ω w),   w <- w - η v          η rate, μ momentum, ω weight decay (both 0 by default)

Batches are gathered by index from tensors in memory; their order is a function of the generator alone. A last
batch of one sample is passed over where the model has batch normalisation.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from torch.nn.modules.batchnorm import _BatchNorm

from celm.data.augment import crop_and_flip
from celm.objectives.objective import AnyObjective, Task


def descend(
    objective: AnyObjective,
    task: Task[Any],
    context: Any,
    inputs: Tensor,
    rows: Tensor,
    *,
    batch: int,
    epochs: int,
    momentum: float,
    weight_decay: float,
    fill: Tensor | None,
    order: torch.Generator,
) -> int:
    """Train the task's module in place; returns the number of steps.

    `inputs` `[n, *shape]` are everybody's, `rows` `[m]` say which are this client's; `task.labels` `[m]` are
    its labels. With `fill`, batches are cropped and flipped at random.
    """
    parameters: list[Tensor] = list(task.parameters)
    velocity = [torch.zeros_like(parameter) for parameter in parameters] if momentum else []
    steps = 0
    lone_fails = any(isinstance(part, _BatchNorm) for part in task.module.modules())
    for positions in batches(len(rows), batch, epochs, order):
        if lone_fails and len(positions) == 1:
            continue  # one sample has no variance to normalise by
        chosen = positions.to(inputs.device)
        x = inputs.index_select(0, rows.index_select(0, chosen))
        if fill is not None:
            x = crop_and_flip(x, fill, order)
        gradients = list(objective.gradients(task, context, x, task.labels.index_select(0, chosen)))
        with torch.no_grad():
            if weight_decay:
                gradients = list(torch._foreach_add(gradients, parameters, alpha=weight_decay))
            if momentum:
                torch._foreach_mul_(velocity, momentum)
                torch._foreach_add_(velocity, gradients)
                gradients = velocity
            torch._foreach_add_(parameters, gradients, alpha=-task.lr)
        steps += 1
    return steps


def batches(count: int, batch: int, epochs: int, order: torch.Generator) -> Iterator[Tensor]:
    """Positions of each mini-batch; every epoch is a new permutation, its last batch may be short."""
    for _ in range(epochs):
        if count:
            yield from torch.split(torch.randperm(count, generator=order), batch)
