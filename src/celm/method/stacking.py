"""Many models of one architecture as one function: every model sees its own inputs in a single call.

    forward(x)[m, j] = f(x[m, j]; w_m)        x [M, k, *shape] -> logits [M, k, K]

Three ways with one result, fastest first:

1. `plain`: a chain of known layers (found by tracing, so a user's own `nn.Sequential` counts) becomes
   batched matrix products and grouped convolutions over the stacked parameters;
2. `mapped`: any module without hooks that `torch.func.vmap` can handle;
3. `looped`: whatever is left, one model after the other.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.func import functional_call, vmap
from torch.nn import functional as F

Function = Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class Forward:
    """The logits of a stack as a function of its inputs, and how they change with them."""

    logits: Function

    def __call__(self, x: Tensor) -> Tensor:
        return self.logits(x)

    def slope(self, x: Tensor, targets: Tensor) -> Tensor:
        """The gradient of Σ_mj forward(x)[m, j, targets[j]] by x `[M, k, *shape]`."""
        wanted = targets.view(1, -1, 1).expand(x.shape[0], -1, 1)
        with torch.enable_grad():
            followed = x.detach().requires_grad_(True)
            return torch.autograd.grad(self(followed).gather(2, wanted).sum(), followed)[0]


@dataclass(frozen=True)
class Rounded(Forward):
    """Exact logits, with slopes from a copy of the models in fewer bits: faster where the device computes so."""

    rough: Forward
    dtype: torch.dtype

    def slope(self, x: Tensor, targets: Tensor) -> Tensor:
        return self.rough.slope(x.to(self.dtype), targets).to(x.dtype)


@dataclass(frozen=True)
class Stack:
    """M models that share one architecture: a module, and the parameters and buffers of each."""

    module: nn.Module
    states: Sequence[Mapping[str, Tensor]]

    def __len__(self) -> int:
        return len(self.states)

    def __getitem__(self, part: slice) -> Stack:
        return Stack(self.module, self.states[part])

    def to(self, dtype: torch.dtype) -> Stack:
        """The same models with every floating tensor of that kind."""
        return Stack(
            self.module,
            [
                {
                    name: tensor.to(dtype) if tensor.is_floating_point() else tensor
                    for name, tensor in state.items()
                }
                for state in self.states
            ],
        )

    def stacked(self, name: str) -> Tensor:
        return torch.stack([state[name].detach() for state in self.states])

    def names(self) -> list[str]:
        # Tied tensors appear once here, as `functional_call` wants it; a buffer that is no part of a state dict
        # may be missing from the states, and is then the module's own.
        tensors = (*self.module.named_parameters(), *self.module.named_buffers())
        return [name for name, _ in tensors if name in self.states[0]]


def forward_of(stack: Stack, shape: tuple[int, ...]) -> Forward:
    """The fastest of the three ways that works for this architecture, found with one trial call."""
    fast = plain(stack, shape)
    if fast is not None:
        return fast
    if len(stack) > 1 and not hooked(stack.module):
        like = next(iter(stack.states[0].values()))
        trial = torch.zeros(len(stack), 1, *shape, device=like.device, dtype=like.dtype)
        try:
            general = mapped(stack)
            general(trial)
        except Exception:
            # vmap refuses in many ways (data-dependent control flow, in-place updates, unsupported operators)
            # and with many types of error; a genuine fault of the model shows again in the loop.
            return looped(stack)
        return general
    return looped(stack)


def logits_of(output: Any) -> Tensor:
    """The logits tensor in what a model returns: a tensor, or an object or mapping that holds `logits`."""
    if isinstance(output, Tensor):
        return output
    found = output.get("logits") if isinstance(output, Mapping) else getattr(output, "logits", None)
    if not isinstance(found, Tensor):
        raise TypeError(f"a model must return logits, not {type(output).__name__}")
    return found


def mapped(stack: Stack) -> Forward:
    tensors = {name: stack.stacked(name) for name in stack.names()}

    def one(state: dict[str, Tensor], x: Tensor) -> Tensor:
        return logits_of(functional_call(stack.module, state, (x,)))

    several: Callable[..., Tensor] = vmap(one)
    return Forward(lambda x: several(tensors, x.clone()))  # a copy, since a model may write over its input


def looped(stack: Stack) -> Forward:
    names = stack.names()
    states = [{name: state[name].detach() for name in names} for state in stack.states]

    def forward(x: Tensor) -> Tensor:
        outputs = [functional_call(stack.module, state, (x[m].clone(),)) for m, state in enumerate(states)]
        return torch.stack([logits_of(output) for output in outputs])

    return Forward(forward)


# --- plain chains of layers ---------------------------------------------------------------------------------
# Activations are `rows` [M, k, features], or, between the first convolution and the flattening, `images`
# [k, M * channels, height, width], channels last, so that one grouped convolution serves all models.

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


def hooked(module: nn.Module) -> bool:
    """Whether anything is called along with the layers; vmap would pass over what changes gradients."""
    kinds = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
    return any(getattr(part, kind) for part in module.modules() for kind in kinds)


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
