"""What a round of training costs at least: its floating-point work at the rate that the cores reach.

    forward        2 n o k      n samples, o outputs of a layer for each, k products summed in an output
    backward       2 n o k      for the weights, and as much again for the inputs, but not the first layer's

A linear layer has o = outputs and k = inputs; a convolution o = channels x pixels out, k = channels in x kernel.
Biases, activations, pooling, the loss and the step itself are left out, so that no engine can reach the limit.

The rate is measured with all cores busy, a process of one thread each, all at the same time, in two ways: with one
large square matrix product, the best that the machine does; and with the very products of a training step.
"""

from __future__ import annotations

import multiprocessing
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from multiprocessing.synchronize import Barrier
from typing import Any

import torch
from torch import Tensor, nn

SQUARE = 1536
"""Side of the large matrices."""
WINDOW = 1.0
"""Seconds that a rate is measured for."""

Operation = Callable[[], object]


@dataclass(frozen=True)
class Layer:
    """A linear layer or a convolution, and the shapes of one sample before and after it."""

    weight: tuple[int, ...]
    before: tuple[int, ...]
    after: tuple[int, ...]
    first: bool
    """Whether its inputs are data, which need no gradient."""
    stride: tuple[int, ...] = ()
    padding: tuple[int, ...] = ()
    dilation: tuple[int, ...] = ()

    @property
    def flops(self) -> int:
        """Of a sample's training step."""
        forward = 2 * torch.Size(self.after).numel() * torch.Size(self.weight[1:]).numel()
        return forward * (2 if self.first else 3)

    def operations(self, batch: int) -> list[Operation]:
        """Forward, gradient of the weights, gradient of the inputs, each as PyTorch computes it by itself."""
        generator = torch.Generator().manual_seed(0)
        made = (self.weight, (batch, *self.before), (batch, *self.after))
        weight, inputs, error = (torch.randn(shape, generator=generator) for shape in made)
        return (
            self.convolutions(weight, inputs, error) if self.stride else self.matrices(weight, inputs, error)
        )

    def matrices(self, weight: Tensor, inputs: Tensor, error: Tensor) -> list[Operation]:
        into_inputs = [] if self.first else [lambda: torch.mm(error, weight)]
        return [lambda: torch.mm(inputs, weight.t()), lambda: torch.mm(error.t(), inputs), *into_inputs]

    def convolutions(self, *tensors: Tensor) -> list[Operation]:
        weight, inputs, error = (each.contiguous(memory_format=torch.channels_last) for each in tensors)
        how = (self.stride, self.padding, self.dilation)

        def backward() -> object:
            wanted = [not self.first, True, False]
            unused = [0] * len(self.stride)
            return torch.ops.aten.convolution_backward(
                error, inputs, weight, None, *how, False, unused, 1, wanted
            )

        return [lambda: torch.conv2d(inputs, weight, None, *how), backward]


@torch.no_grad()
def layers_of(module: nn.Module, shape: Sequence[int]) -> list[Layer]:
    """The layers of a model that do its work, in the order in which a sample of the given shape meets them."""
    found: list[Layer] = []

    def note(part: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        assert isinstance(part, nn.Linear | nn.Conv2d)
        shapes = (part.weight.shape, inputs[0].shape[1:], output.shape[1:])
        weight, before, after = (tuple(each) for each in shapes)
        how: dict[str, Any] = {}
        if isinstance(part, nn.Conv2d):
            how = {name: getattr(part, name) for name in ("stride", "padding", "dilation")}
        found.append(Layer(weight, before, after, first=not found, **how))

    hooks = [
        part.register_forward_hook(note)
        for part in module.modules()
        if isinstance(part, nn.Linear | nn.Conv2d)
    ]
    module(torch.zeros(1, *shape))
    for hook in hooks:
        hook.remove()
    return found


def flops_per_sample(layers: Sequence[Layer]) -> int:
    """Floating-point operations of a training step, for each sample in it."""
    return sum(layer.flops for layer in layers)


def rates(layers: Sequence[Layer], batch: int, workers: int, window: float = WINDOW) -> dict[str, float]:
    """Floating-point operations a second of all workers together: `square`, and `layers` at their own shapes."""
    context = multiprocessing.get_context("spawn")
    start, answers = context.Barrier(workers), context.SimpleQueue()
    crew = [
        context.Process(target=answer, args=(answers.put, start, list(layers), batch, window), daemon=True)
        for _ in range(workers)
    ]
    for process in crew:
        process.start()
    found = [answers.get() for _ in crew]
    for process in crew:
        process.join()
    return {name: sum(each[name] for each in found) for name in found[0]}


def answer(
    give: Callable[[object], None], start: Barrier, layers: Sequence[Layer], batch: int, window: float
) -> None:
    """A worker's rates, measured when all are ready."""
    torch.set_num_threads(1)
    with torch.no_grad():
        large = torch.ones(SQUARE, SQUARE)
        step = [operation for layer in layers for operation in layer.operations(batch)]
        square = rate([lambda: torch.mm(large, large)], 2 * SQUARE**3, start, window)
        own = rate(step, batch * flops_per_sample(layers), start, window)
    give({"square": square, "layers": own})


def rate(operations: Sequence[Operation], flops: int, start: Barrier, window: float) -> float:
    for operation in operations:
        operation()
    start.wait()
    begun, times = time.perf_counter(), 0
    while time.perf_counter() - begun < window or not times:
        for operation in operations:
            operation()
        times += 1
    return times * flops / (time.perf_counter() - begun)
