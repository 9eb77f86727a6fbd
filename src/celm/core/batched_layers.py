"""The forward of a stack of layer chains as batched operations on the stacked parameters.

Activations are `rows` [M, k, features]. Between the first convolution and the flattening they are `images`
[k, M * channels, height, width], channels last. So one grouped convolution serves all models.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.nn import functional as F

from celm.core.model_stack import BatchedForward, ModelStack, TensorFunction, has_hooks

_ELEMENTWISE_LAYERS = (
    nn.ReLU,
    nn.LeakyReLU,
    nn.ELU,
    nn.SELU,
    nn.GELU,
    nn.SiLU,
    nn.Tanh,
    nn.Sigmoid,
    nn.Softplus,
)
_POOLING_LAYERS = (nn.MaxPool2d, nn.AvgPool2d, nn.AdaptiveAvgPool2d, nn.AdaptiveMaxPool2d)
_NO_OP_LAYERS = (nn.Identity, nn.Dropout, nn.Dropout2d)
_SUPPORTED_LAYERS = {
    *_ELEMENTWISE_LAYERS,
    *_POOLING_LAYERS,
    *_NO_OP_LAYERS,
    nn.Flatten,
    nn.Linear,
    nn.Conv2d,
    nn.BatchNorm1d,
    nn.BatchNorm2d,
}
_FUNCTION_LAYERS: dict[Any, Callable[..., nn.Module]] = {
    torch.relu: nn.ReLU,
    F.relu: nn.ReLU,
    torch.tanh: nn.Tanh,
    torch.sigmoid: nn.Sigmoid,
    "relu": nn.ReLU,
    "tanh": nn.Tanh,
    "sigmoid": nn.Sigmoid,
}


class _Tracer(fx.Tracer):
    """A tracer that fails on a forward that branches on a buffer or parameter, since their values differ by model."""

    proxy_buffer_attributes = True


def _trace_sequential(module: nn.Module) -> list[tuple[str, nn.Module]] | None:
    """Return the module as named layers, each fed by the previous one; None if it is not such a chain."""
    if has_hooks(module):
        return None
    if not list(module.children()):
        return [("", module)] if type(module) is nn.Linear else None
    try:
        with warnings.catch_warnings(), _restored_attributes(module):
            warnings.simplefilter("ignore")
            graph = _Tracer().trace(module)
    except Exception:  # tracing runs the model's code on proxies, which may fail with any error
        return None
    layers: list[tuple[str, nn.Module]] = []
    previous: fx.Node | None = None
    for node in graph.nodes:
        if node.op == "placeholder" and previous is None:
            previous = node
            continue
        if node.op == "output":
            return layers if node.args == (previous,) else None
        layer = _layer_from_node(node, module)
        if layer is None or not node.args or node.args[0] is not previous:
            return None
        layers.append((str(node.target) if node.op == "call_module" else "", layer))
        previous = node
    return None


@contextmanager
def _restored_attributes(module: nn.Module) -> Iterator[None]:
    """Restore attributes and buffers that a forward assigns, such as a counter. Tracing would leave proxies there."""
    saved = [(part, dict(vars(part)), dict(part._buffers)) for part in module.modules()]
    try:
        yield
    finally:
        for part, attributes, buffers in saved:
            vars(part).clear()
            vars(part).update(attributes)
            part._buffers.clear()
            part._buffers.update(buffers)


def _layer_from_node(node: fx.Node, module: nn.Module) -> nn.Module | None:
    if node.op == "call_module" and len(node.args) == 1 and not node.kwargs:
        return module.get_submodule(str(node.target))
    if node.op in ("call_function", "call_method"):
        if node.target in _FUNCTION_LAYERS and len(node.args) == 1 and not node.kwargs.get("inplace"):
            return _FUNCTION_LAYERS[node.target]()
        if node.target in (torch.flatten, "flatten") and (node.args[1:], dict(node.kwargs)) in (
            ((1,), {}),
            ((), {"start_dim": 1}),
        ):
            return nn.Flatten()
    return None


def layerwise_forward(stack: ModelStack, shape: tuple[int, ...]) -> BatchedForward | None:
    """Return the stack as batched operations; None unless it is a chain of supported layers."""
    layers = _trace_sequential(stack.module)
    if layers is None or any(type(layer) not in _SUPPORTED_LAYERS for _, layer in layers):
        return None
    relu_mlp = _match_batched_relu_mlp(stack, layers, shape)
    if relu_mlp is not None:
        return relu_mlp
    layout = "rows" if len(shape) == 1 else "unflattened"
    steps: list[TensorFunction] = []
    for name, layer in layers:
        if (
            isinstance(layer, (nn.Conv2d, nn.BatchNorm2d, *_POOLING_LAYERS))
            and layout == "unflattened"
            and len(shape) == 3
        ):
            steps.append(_to_grouped_images)
            layout = "images"
        if isinstance(layer, _NO_OP_LAYERS):
            continue
        if isinstance(layer, _ELEMENTWISE_LAYERS):
            steps.append(_out_of_place(layer))
        elif isinstance(layer, nn.Flatten) and (layer.start_dim, layer.end_dim) == (1, -1):
            steps.append(_to_rows(len(stack)) if layout == "images" else lambda x: x.flatten(2))
            layout = "rows"
        elif isinstance(layer, nn.Linear) and layout == "rows":
            steps.append(_batched_linear(stack, name, layer))
        elif isinstance(layer, nn.Conv2d) and layout == "images" and layer.padding_mode == "zeros":
            steps.append(_batched_convolution(stack, name, layer))
        elif (
            isinstance(layer, _POOLING_LAYERS)
            and layout == "images"
            and not getattr(layer, "return_indices", False)
        ):
            steps.append(layer)
        elif isinstance(layer, nn.BatchNorm1d) and layout == "rows" and layer.track_running_stats:
            scale, shift = _batch_norm_affine(stack, name, layer)
            steps.append(_affine(scale[:, None], shift[:, None]))
        elif isinstance(layer, nn.BatchNorm2d) and layout == "images" and layer.track_running_stats:
            scale, shift = _batch_norm_affine(stack, name, layer)
            steps.append(_affine(scale.reshape(1, -1, 1, 1), shift.reshape(1, -1, 1, 1)))
        else:
            return None
    if layout != "rows":
        return None

    def forward(x: Tensor) -> Tensor:
        for step in steps:
            x = step(x)
        return x

    return BatchedForward(forward)


@dataclass(frozen=True)
class BatchedReluMlp(BatchedForward):
    """Linear layers with ReLUs between them, with an explicit gradient that needs neither autograd nor logits.

    weights[l] is `[M, in, out]`, offsets[l] is `[M, 1, out]`.
    """

    weights: Sequence[Tensor]
    offsets: Sequence[Tensor]

    @torch.no_grad()
    def input_gradient(self, x: Tensor, targets: Tensor) -> Tensor:
        hidden: list[Tensor] = []
        activation = x.flatten(2)
        for weight, offset in zip(self.weights[:-1], self.offsets[:-1], strict=True):
            activation = torch.baddbmm(offset, activation, weight).relu_()
            hidden.append(activation)
        gradient = self.weights[-1].index_select(2, targets).transpose(1, 2)
        for weight, layer in zip(reversed(self.weights[:-1]), reversed(hidden), strict=True):
            gradient = torch.bmm(
                torch.ops.aten.threshold_backward(gradient, layer, 0), weight.transpose(1, 2)
            )
        return gradient.view(x.shape)


def _match_batched_relu_mlp(
    stack: ModelStack, layers: Sequence[tuple[str, nn.Module]], shape: tuple[int, ...]
) -> BatchedReluMlp | None:
    """Return the stack as a `BatchedReluMlp`, or None if it has other layers."""
    if layers and type(layers[0][1]) is nn.Flatten:
        flatten = layers[0][1]
        layers = layers[1:] if (flatten.start_dim, flatten.end_dim) == (1, -1) else []
    elif len(shape) > 1:
        return None
    linears, activations = layers[::2], layers[1::2]
    if (
        len(linears) != len(activations) + 1
        or any(type(layer) is not nn.Linear or layer.bias is None for _, layer in linears)
        or any(type(layer) is not nn.ReLU for _, layer in activations)
    ):
        return None
    prefixes = [f"{name}." if name else "" for name, _ in linears]
    weights = [stack.stacked_tensor(f"{prefix}weight").transpose(1, 2) for prefix in prefixes]
    offsets = [stack.stacked_tensor(f"{prefix}bias").unsqueeze(1) for prefix in prefixes]

    def logits(x: Tensor) -> Tensor:
        x = x.flatten(2)
        for weight, offset in zip(weights[:-1], offsets[:-1], strict=True):
            x = torch.baddbmm(offset, x, weight).relu()
        return torch.baddbmm(offsets[-1], x, weights[-1])

    return BatchedReluMlp(logits, weights, offsets)


def _out_of_place(layer: nn.Module) -> TensorFunction:
    """Return the activation as a function that does not overwrite its input."""
    if getattr(layer, "inplace", False):
        return lambda x: layer(x.clone())
    return layer


def _to_grouped_images(x: Tensor) -> Tensor:
    """Convert `[M, k, channels, height, width]` to images `[k, M * channels, height, width]`."""
    count, batch, channels, height, width = x.shape
    images = x.transpose(0, 1).reshape(batch, count * channels, height, width)
    return images.contiguous(memory_format=torch.channels_last)


def _to_rows(count: int) -> TensorFunction:
    """Return the function from images of `count` models to rows."""
    return lambda x: x.reshape(x.shape[0], count, -1).transpose(0, 1)


def _batched_linear(stack: ModelStack, name: str, layer: nn.Linear) -> TensorFunction:
    prefix = f"{name}." if name else ""
    weight = stack.stacked_tensor(f"{prefix}weight").transpose(1, 2)
    if layer.bias is None:
        return lambda x: torch.bmm(x, weight)
    offset = stack.stacked_tensor(f"{prefix}bias").unsqueeze(1)
    return lambda x: torch.baddbmm(offset, x, weight)


def _batched_convolution(stack: ModelStack, name: str, layer: nn.Conv2d) -> TensorFunction:
    weight = stack.stacked_tensor(f"{name}.weight").flatten(0, 1)
    weight = weight.contiguous(memory_format=torch.channels_last)
    offset = None
    if layer.bias is not None:
        offset = stack.stacked_tensor(f"{name}.bias").flatten()
    stride, padding, dilation = layer.stride, layer.padding, layer.dilation
    groups = layer.groups * len(stack)
    return lambda x: F.conv2d(x, weight, offset, stride, padding, dilation, groups)


def _batch_norm_affine(
    stack: ModelStack, name: str, layer: nn.BatchNorm1d | nn.BatchNorm2d
) -> tuple[Tensor, Tensor]:
    """Return the scale and shift, `[M, channels]` each, that a batch norm applies in eval mode."""
    scale = (stack.stacked_tensor(f"{name}.running_var") + layer.eps).rsqrt()
    shift = -stack.stacked_tensor(f"{name}.running_mean") * scale
    if layer.affine:
        gain = stack.stacked_tensor(f"{name}.weight")
        scale, shift = scale * gain, shift * gain + stack.stacked_tensor(f"{name}.bias")
    return scale, shift


def _affine(scale: Tensor, shift: Tensor) -> TensorFunction:
    return lambda x: x * scale + shift
