"""Local training: mini-batch SGD or Adam over a client's samples.

    SGD     v <- μ v + (g + ω w),   w <- w - η v          η rate, μ momentum, ω weight decay (both 0 by default)
    Adam    on g + ω w, with β = (0.9, 0.999) and ε = 1e-8; its moments start at 0 in each call

Batches are gathered by index from tensors in memory. Their order is a function of the generator alone. A last
batch of one sample is skipped if the model has batch normalisation.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor
from torch.nn.modules.batchnorm import _BatchNorm

from celm.data.augment import crop_and_flip
from celm.objectives.objective import AnyObjective, LocalTask


@dataclass(frozen=True)
class TrainingOverrides:
    """Settings of one client's training that differ from the run's."""

    epochs: int | None = None
    """Local epochs; None: as in the run."""
    lr_factor: float = 1.0
    """Factor on the run's learning rate."""
    label_smoothing: float = 0.0
    """ε of smoothed labels; 0 leaves labels unchanged."""


def train_locally(
    objective: AnyObjective,
    task: LocalTask[Any],
    context: Any,
    inputs: Tensor,
    rows: Tensor,
    *,
    batch_size: int,
    epochs: int,
    momentum: float,
    weight_decay: float,
    pad_value: Tensor | None,
    generator: torch.Generator,
    optimizer: Literal["sgd", "adam"] = "sgd",
) -> int:
    """Train the task's module in place and return the number of steps.

    `inputs` `[n, *shape]` are the samples of all clients, `rows` `[m]` the positions of this client's samples, and
    `task.labels` `[m]` their labels. With `pad_value`, batches are cropped and flipped at random.
    """
    parameters: list[Tensor] = list(task.parameters)
    adam = torch.optim.Adam(parameters, task.lr, weight_decay=weight_decay) if optimizer == "adam" else None
    velocity = [torch.zeros_like(parameter) for parameter in parameters] if momentum else []
    steps = 0
    skip_single_samples = any(isinstance(part, _BatchNorm) for part in task.module.modules())
    for positions in shuffled_batches(len(rows), batch_size, epochs, generator):
        if skip_single_samples and len(positions) == 1:
            continue  # one sample has no variance to normalise by
        batch_rows = positions.to(inputs.device)
        x = inputs.index_select(0, rows.index_select(0, batch_rows))
        if pad_value is not None:
            x = crop_and_flip(x, pad_value, generator)
        gradients = list(objective.gradients(task, context, x, task.labels.index_select(0, batch_rows)))
        if adam is not None:
            for parameter, gradient in zip(parameters, gradients, strict=True):
                parameter.grad = gradient
            adam.step()
            adam.zero_grad()
            steps += 1
            continue
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


def shuffled_batches(
    count: int, batch_size: int, epochs: int, generator: torch.Generator
) -> Iterator[Tensor]:
    """Yield the positions of each mini-batch; each epoch is a new permutation, and its last batch may be short."""
    for _ in range(epochs):
        if count:
            yield from torch.split(torch.randperm(count, generator=generator), batch_size)
