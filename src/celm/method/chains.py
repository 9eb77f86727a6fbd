"""A stack of plain chains of layers as batched operations on the stacked parameters.

Activations are `rows` [M, k, features], or, between the first convolution and the flattening, `images`
[k, M * channels, height, width], channels last, so that one grouped convolution serves all models.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.nn import functional as F

from celm.method.stacking import Forward, Function, Stack, hooked

ELEMENTWISE = (nn.ReLU, nn.LeakyReLU, nn.ELU, nn.SELU, nn.GELU, nn.SiLU, nn.Tanh, nn.Sigmoid, nn.Softplus)
POOLING = (nn.MaxPool2d, nn.AvgPool2d, nn.AdaptiveAvgPool2d, nn.AdaptiveMaxPool2d)
SKIPPED = (nn.Identity, nn.Dropout, nn.Dropout2d)
KNOWN = {*ELEMENTWISE, *POOLING, *SKIPPED, nn.Flatten, nn.Linear, nn.Conv2d, nn.BatchNorm1d, nn.BatchNorm2d}
FUNCTIONS: dict[Any, Callable[..., nn.Module]] = {
    torch.relu: nn.ReLU,
    F.relu: nn.ReLU,
    torch.tanh: nn.Tanh,
    torch.sigmoid: nn.Sigmoid,
    "relu": nn.ReLU,
    "tanh": nn.Tanh,
    "sigmoid": nn.Sigmoid,
}


class Tracer(fx.Tracer):
    """Refuses a forward that branches on a buffer, as it does for parameters: each model has its own values."""

    proxy_buffer_attributes = True


def chain(module: nn.Module) -> list[tuple[str, nn.Module]] | None:
    """The module as named layers, each fed by the one before; None where it is anything else."""
    if hooked(module):
        return None
    if not list(module.children()):
        return [("", module)] if type(module) is nn.Linear else None
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            graph = Tracer().trace(module)
    except Exception:  # tracing runs the model's own Python on stand-ins: it may fail in any way
        return None
    layers: list[tuple[str, nn.Module]] = []
    last: fx.Node | None = None
    for node in graph.nodes:
        if node.op == "placeholder" and last is None:
            last = node
            continue
        if node.op == "output":
            return layers if node.args == (last,) else None
        layer = as_layer(node, module)
        if layer is None or not node.args or node.args[0] is not last:
            return None
        layers.append((str(node.target) if node.op == "call_module" else "", layer))
        last = node
    return None


def as_layer(node: fx.Node, module: nn.Module) -> nn.Module | None:
    if node.op == "call_module" and len(node.args) == 1 and not node.kwargs:
        return module.get_submodule(str(node.target))
    if node.op in ("call_function", "call_method"):
        if node.target in FUNCTIONS and len(node.args) == 1 and not node.kwargs.get("inplace"):
            return FUNCTIONS[node.target]()
        if node.target in (torch.flatten, "flatten") and (node.args[1:], dict(node.kwargs)) in (
            ((1,), {}),
            ((), {"start_dim": 1}),
        ):
            return nn.Flatten()
    return None


def plain(stack: Stack, shape: tuple[int, ...]) -> Forward | None:
    """The stack as batched operations, or None where it is not a chain of layers known here."""
    layers = chain(stack.module)
    if layers is None or any(type(layer) not in KNOWN for _, layer in layers):
        return None
    linear_only = linear_stack(stack, layers, shape)
    if linear_only is not None:
        return linear_only
    form = "rows" if len(shape) == 1 else "unflattened"
    steps: list[Function] = []
    for name, layer in layers:
        if (
            isinstance(layer, (nn.Conv2d, nn.BatchNorm2d, *POOLING))
            and form == "unflattened"
            and len(shape) == 3
        ):
            steps.append(images_of)
            form = "images"
        if isinstance(layer, SKIPPED):
            continue
        if isinstance(layer, ELEMENTWISE):
            steps.append(out_of_place(layer))
        elif isinstance(layer, nn.Flatten) and (layer.start_dim, layer.end_dim) == (1, -1):
            steps.append(rows_of(len(stack)) if form == "images" else lambda x: x.flatten(2))
            form = "rows"
        elif isinstance(layer, nn.Linear) and form == "rows":
            steps.append(linear(stack, name, layer))
        elif isinstance(layer, nn.Conv2d) and form == "images" and layer.padding_mode == "zeros":
            steps.append(convolution(stack, name, layer))
        elif isinstance(layer, POOLING) and form == "images" and not getattr(layer, "return_indices", False):
            steps.append(layer)
        elif isinstance(layer, nn.BatchNorm1d) and form == "rows" and layer.track_running_stats:
            scale, shift = batch_norm(stack, name, layer)
            steps.append(scaled(scale[:, None], shift[:, None]))
        elif isinstance(layer, nn.BatchNorm2d) and form == "images" and layer.track_running_stats:
            scale, shift = batch_norm(stack, name, layer)
            steps.append(scaled(scale.reshape(1, -1, 1, 1), shift.reshape(1, -1, 1, 1)))
        else:
            return None
    if form != "rows":
        return None

    def forward(x: Tensor) -> Tensor:
        for step in steps:
            x = step(x)
        return x

    return Forward(forward)


@dataclass(frozen=True)
class LinearStack(Forward):
    """Linear layers with a ReLU between each two, whose slope is written out: it needs no autograd and no logits.

    weights[l] is `[M, in, out]`, offsets[l] `[M, 1, out]`.
    """

    weights: Sequence[Tensor]
    offsets: Sequence[Tensor]

    @torch.no_grad()
    def slope(self, x: Tensor, targets: Tensor) -> Tensor:
        hidden: list[Tensor] = []
        last = x.flatten(2)
        for weight, offset in zip(self.weights[:-1], self.offsets[:-1], strict=True):
            last = torch.baddbmm(offset, last, weight).relu_()
            hidden.append(last)
        error = self.weights[-1].index_select(2, targets).transpose(1, 2)
        for weight, layer in zip(reversed(self.weights[:-1]), reversed(hidden), strict=True):
            error = torch.bmm(torch.ops.aten.threshold_backward(error, layer, 0), weight.transpose(1, 2))
        return error.view(x.shape)


def linear_stack(
    stack: Stack, layers: Sequence[tuple[str, nn.Module]], shape: tuple[int, ...]
) -> LinearStack | None:
    """The stack as such, if it is nothing but that."""
    if layers and type(layers[0][1]) is nn.Flatten:
        first = layers[0][1]
        layers = layers[1:] if (first.start_dim, first.end_dim) == (1, -1) else []
    elif len(shape) > 1:
        return None
    linears, between = layers[::2], layers[1::2]
    if (
        len(linears) != len(between) + 1
        or any(type(layer) is not nn.Linear or layer.bias is None for _, layer in linears)
        or any(type(layer) is not nn.ReLU for _, layer in between)
    ):
        return None
    prefixes = [f"{name}." if name else "" for name, _ in linears]
    weights = [stack.stacked(f"{prefix}weight").transpose(1, 2) for prefix in prefixes]
    offsets = [stack.stacked(f"{prefix}bias").unsqueeze(1) for prefix in prefixes]

    def logits(x: Tensor) -> Tensor:
        x = x.flatten(2)
        for weight, offset in zip(weights[:-1], offsets[:-1], strict=True):
            x = torch.baddbmm(offset, x, weight).relu()
        return torch.baddbmm(offsets[-1], x, weights[-1])

    return LinearStack(logits, weights, offsets)


def out_of_place(layer: nn.Module) -> Function:
    """The activation, never writing over the probe's own inputs."""
    if getattr(layer, "inplace", False):
        return lambda x: layer(x.clone())
    return layer


def images_of(x: Tensor) -> Tensor:
    count, batch, channels, height, width = x.shape
    images = x.transpose(0, 1).reshape(batch, count * channels, height, width)
    return images.contiguous(memory_format=torch.channels_last)


def rows_of(count: int) -> Function:
    return lambda x: x.reshape(x.shape[0], count, -1).transpose(0, 1)


def linear(stack: Stack, name: str, layer: nn.Linear) -> Function:
    prefix = f"{name}." if name else ""
    weight = stack.stacked(f"{prefix}weight").transpose(1, 2)
    if layer.bias is None:
        return lambda x: torch.bmm(x, weight)
    offset = stack.stacked(f"{prefix}bias").unsqueeze(1)
    return lambda x: torch.baddbmm(offset, x, weight)


def convolution(stack: Stack, name: str, layer: nn.Conv2d) -> Function:
    weight = torch.cat([state[f"{name}.weight"].detach() for state in stack.states])
    weight = weight.contiguous(memory_format=torch.channels_last)
    offset = None
    if layer.bias is not None:
        offset = torch.cat([state[f"{name}.bias"].detach() for state in stack.states])
    stride, padding, dilation = layer.stride, layer.padding, layer.dilation
    groups = layer.groups * len(stack)
    return lambda x: F.conv2d(x, weight, offset, stride, padding, dilation, groups)


def batch_norm(stack: Stack, name: str, layer: nn.BatchNorm1d | nn.BatchNorm2d) -> tuple[Tensor, Tensor]:
    """In eval mode a batch norm is a scale and a shift, `[M, channels]` each."""
    scale = (stack.stacked(f"{name}.running_var") + layer.eps).rsqrt()
    shift = -stack.stacked(f"{name}.running_mean") * scale
    if layer.affine:
        gain = stack.stacked(f"{name}.weight")
        scale, shift = scale * gain, shift * gain + stack.stacked(f"{name}.bias")
    return scale, shift


def scaled(scale: Tensor, shift: Tensor) -> Function:
    return lambda x: x * scale + shift
