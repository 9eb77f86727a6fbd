"""A model as data: its state dict, and the check that a client's upload fits.

Buffers belong to it as much as parameters do: a BatchNorm layer without its statistics is another model.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from celm.base.errors import CelmError

StateDict = dict[str, Tensor]


def state_of(module: nn.Module) -> StateDict:
    """Detached copies of all parameters and persistent buffers, on the module's own device, in C order."""
    state: StateDict = {}
    for name, tensor in module.state_dict().items():
        if not isinstance(tensor, Tensor):
            raise CelmError(f"the model keeps {shown(name)}, which is not a tensor and cannot be exchanged")
        state[name] = tensor.detach().clone(memory_format=torch.contiguous_format)
    return state


def load_state(module: nn.Module, state: Mapping[str, Tensor]) -> None:
    """Copy `state` into the module, in place; every name and shape must fit."""
    try:
        module.load_state_dict(dict(state), strict=True)
    except RuntimeError as error:
        own = {name: tensor for name, tensor in module.state_dict().items() if isinstance(tensor, Tensor)}
        reason = describe_mismatch(state, own) or " ".join(str(error).split())
        raise CelmError(f"the state does not fit the model: {reason}") from error


def conform(state: Mapping[str, Tensor], reference: Mapping[str, Tensor]) -> StateDict:
    """`state` with the order, dtypes and devices of `reference`, which it must fit."""
    return {name: state[name].detach().to(tensor) for name, tensor in reference.items()}


def describe_mismatch(state: object, reference: Mapping[str, Tensor]) -> str | None:
    """The first thing that keeps `state` from standing in for `reference`, in one line; None if it fits.

    This is the border that a client's upload crosses: names, shapes, kinds of number (a float64 may stand in
    for a float32, an integer may not) and finiteness, the last after conversion to the reference's own dtype.
    Whatever `state` is, the text is bounded and nothing is raised.
    """
    try:
        return first_mismatch(state, reference)
    except Exception as error:  # a tensor can be made to fail in ways that no list of checks foresees
        return f"cannot be read ({type(error).__name__})"


def first_mismatch(state: object, reference: Mapping[str, Tensor]) -> str | None:
    if not isinstance(state, Mapping):
        return f"expected named tensors, got {type(state).__name__[:40]}"
    for name in reference:
        if name not in state:
            like = next((other for other in state if str(other).endswith(f".{name}")), None)
            return f"tensor {shown(name)} is missing" + (f"; there is {shown(like)}" if like else "")
    if len(state) != len(reference):
        extra = next((name for name in state if name not in reference), None)
        return f"unexpected tensor {shown(extra)}"
    for name, expected in reference.items():
        reason = misfit(state[name], expected)
        if reason is not None:
            return f"tensor {shown(name)}: {reason}"
    return None


def misfit(value: object, expected: Tensor) -> str | None:
    if not isinstance(value, Tensor):
        return f"expected a tensor, got {type(value).__name__[:40]}"
    # Sparse, nested, quantized and data-less tensors have no plain memory to average.
    if value.layout is not torch.strided or value.is_quantized or value.is_meta or value.is_nested:
        return "expected a dense tensor"
    if value.shape != expected.shape:
        return f"expected shape {bounded_shape(expected)}, got {bounded_shape(value)}"
    if kind(value) != kind(expected):
        return f"expected {kind(expected)} values, got {kind(value)}"
    if kind(expected) in ("floating", "complex"):
        with torch.no_grad():
            taken = value.detach().to(expected.dtype)
            # A sum is finite only if all values are; where it overflows, they are counted.
            bad = 0 if bool(torch.isfinite(taken.sum())) else int((~torch.isfinite(taken)).sum())
        if bad:
            return f"{bad} of {value.numel()} values are not finite"
    return None


def kind(tensor: Tensor) -> str:
    if tensor.dtype is torch.bool:
        return "boolean"
    if tensor.is_complex():
        return "complex"
    return "floating" if tensor.is_floating_point() else "integer"


def bounded_shape(tensor: Tensor) -> str:
    return str(tuple(tensor.shape)) if tensor.ndim <= 8 else f"of {tensor.ndim} dimensions"


def shown(name: object, limit: int = 80) -> str:
    """A name for a message: quoted and escaped, never longer than about `limit`."""
    if not isinstance(name, str):
        return f"of {type(name).__name__[:40]} name"
    text = ascii(name[:limit])
    return f"{text[:limit]}...{text[-1]}" if len(name) > limit or len(text) > limit + 2 else text
