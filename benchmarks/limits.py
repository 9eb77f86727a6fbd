"""The lower limit on the time of a training round: its floating-point operations at the rate that the cores reach.

    forward        2 n o k      n samples, o outputs of a layer for each, k products summed in an output
    backward       2 n o k      for the weights, and again for the inputs, except in the first layer

A linear layer has o = outputs and k = inputs; a convolution o = channels x pixels out, k = channels in x kernel.
Biases, activations, pooling, the loss and the step itself are not included, so no engine can reach the limit.

The rate is measured with one process of one thread on each core, all at the same time. It is measured in two ways: with
one large square matrix product, which is the fastest operation, and with the products of a training step.
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
"""Rows and columns of the large matrices."""
WINDOW = 1.0
"""Duration of the measurement of a rate, in seconds."""

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
        """Floating-point operations of a training step, per sample."""
        forward = 2 * torch.Size(self.after).numel() * torch.Size(self.weight[1:]).numel()
        return forward * (2 if self.first else 3)

    def operations(self, batch: int) -> list[Operation]:
        """Return the forward pass, the gradient of the weights and that of the inputs, as PyTorch computes them."""
        generator = torch.Generator().manual_seed(0)
        shapes = (self.weight, (batch, *self.before), (batch, *self.after))
        weight, inputs, error = (torch.randn(shape, generator=generator) for shape in shapes)
        return (
            self.convolutions(weight, inputs, error) if self.stride else self.matrices(weight, inputs, error)
        )

    def matrices(self, weight: Tensor, inputs: Tensor, error: Tensor) -> list[Operation]:
        into_inputs = [] if self.first else [lambda: torch.mm(error, weight)]
        return [lambda: torch.mm(inputs, weight.t()), lambda: torch.mm(error.t(), inputs), *into_inputs]

    def convolutions(self, *tensors: Tensor) -> list[Operation]:
        weight, inputs, error = (tensor.contiguous(memory_format=torch.channels_last) for tensor in tensors)
        geometry = (self.stride, self.padding, self.dilation)

        def backward() -> object:
            output_mask = [not self.first, True, False]
            unused = [0] * len(self.stride)
            return torch.ops.aten.convolution_backward(
                error, inputs, weight, None, *geometry, False, unused, 1, output_mask
            )

        return [lambda: torch.conv2d(inputs, weight, None, *geometry), backward]


@torch.no_grad()
def layers_of(module: nn.Module, shape: Sequence[int]) -> list[Layer]:
    """Return the linear layers and convolutions of a model, in the order of the forward pass of a sample."""
    layers: list[Layer] = []

    def record_layer(part: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        assert isinstance(part, nn.Linear | nn.Conv2d)
        shapes = (part.weight.shape, inputs[0].shape[1:], output.shape[1:])
        weight, before, after = (tuple(size) for size in shapes)
        geometry: dict[str, Any] = {}
        if isinstance(part, nn.Conv2d):
            geometry = {name: getattr(part, name) for name in ("stride", "padding", "dilation")}
        layers.append(Layer(weight, before, after, first=not layers, **geometry))

    hooks = [
        part.register_forward_hook(record_layer)
        for part in module.modules()
        if isinstance(part, nn.Linear | nn.Conv2d)
    ]
    module(torch.zeros(1, *shape))
    for hook in hooks:
        hook.remove()
    return layers


def flops_per_sample(layers: Sequence[Layer]) -> int:
    """Return the floating-point operations of a training step, per sample."""
    return sum(layer.flops for layer in layers)


def rates(layers: Sequence[Layer], batch: int, workers: int, window: float = WINDOW) -> dict[str, float]:
    """Return the operations per second of all workers together: `square`, and `layers` at their own shapes."""
    context = multiprocessing.get_context("spawn")
    start, results = context.Barrier(workers), context.SimpleQueue()
    processes = [
        context.Process(
            target=measure_worker, args=(results.put, start, list(layers), batch, window), daemon=True
        )
        for _ in range(workers)
    ]
    for process in processes:
        process.start()
    worker_rates = [results.get() for _ in processes]
    for process in processes:
        process.join()
    return {name: sum(worker_rate[name] for worker_rate in worker_rates) for name in worker_rates[0]}


def measure_worker(
    send: Callable[[object], None], start: Barrier, layers: Sequence[Layer], batch: int, window: float
) -> None:
    """Measure the rates of one worker when all are ready, and send them."""
    torch.set_num_threads(1)
    with torch.no_grad():
        large = torch.ones(SQUARE, SQUARE)
        step = [operation for layer in layers for operation in layer.operations(batch)]
        square_rate = measure_rate([lambda: torch.mm(large, large)], 2 * SQUARE**3, start, window)
        layer_rate = measure_rate(step, batch * flops_per_sample(layers), start, window)
    send({"square": square_rate, "layers": layer_rate})


def measure_rate(operations: Sequence[Operation], flops: int, start: Barrier, window: float) -> float:
    for operation in operations:
        operation()
    start.wait()
    started, repeats = time.perf_counter(), 0
    while time.perf_counter() - started < window or not repeats:
        for operation in operations:
            operation()
        repeats += 1
    return repeats * flops / (time.perf_counter() - started)
