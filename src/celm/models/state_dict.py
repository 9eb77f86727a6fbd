"""A model as data: its state dict, and the check that a client's upload matches the global model.

A state dict includes buffers: a BatchNorm layer without its statistics is another model.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from celm.base.errors import CelmError
from celm.base.text import quote, single_line

StateDict = dict[str, Tensor]


def get_state(module: nn.Module) -> StateDict:
    """Return contiguous copies of all parameters and persistent buffers, detached, on the module's device."""
    state: StateDict = {}
    for name, tensor in module.state_dict().items():
        if not isinstance(tensor, Tensor):
            raise CelmError(f"the model's state cannot be exchanged: {quote(name)} is not a tensor")
        state[name] = tensor.detach().clone(memory_format=torch.contiguous_format)
    return state


def load_state(module: nn.Module, state: Mapping[str, Tensor]) -> None:
    """Copy `state` into the module, in place; names and shapes must match."""
    try:
        module.load_state_dict(dict(state), strict=True)
    except RuntimeError as error:
        expected = {
            name: tensor for name, tensor in module.state_dict().items() if isinstance(tensor, Tensor)
        }
        reason = describe_mismatch(state, expected) or single_line(str(error))
        raise CelmError(f"the state does not fit the model: {reason}") from error


def to_float32(model: nn.Module) -> nn.Module:
    """Convert a model to float32, in which probes compute: small gradients vanish in half types."""
    other_dtypes = (torch.float16, torch.bfloat16, torch.float64)
    return (
        model.float()
        if any(tensor.dtype in other_dtypes for tensor in model.state_dict().values())
        else model
    )


def cast_like(state: Mapping[str, Tensor], reference: Mapping[str, Tensor]) -> StateDict:
    """Return `state` with the order, dtypes and devices of `reference`, which it must match."""
    return {name: state[name].detach().to(tensor) for name, tensor in reference.items()}


def describe_mismatch(state: object, reference: Mapping[str, Tensor]) -> str | None:
    """Return the first mismatch between `state` and `reference` as one line, or None if `state` matches.

    This check guards the server against client uploads. It compares names, shapes and kinds of number: float64 may
    replace float32, an integer may not. All values must be finite after conversion to the dtype of `reference`.
    For any `state`, the text is bounded and no error is raised.
    """
    try:
        return _first_mismatch(state, reference)
    except Exception as error:  # a hostile tensor can fail in ways that no list of checks foresees
        return f"cannot be read ({type(error).__name__})"


def _first_mismatch(state: object, reference: Mapping[str, Tensor]) -> str | None:
    if not isinstance(state, Mapping):
        return f"expected named tensors, got {type(state).__name__[:40]}"
    for name in reference:
        if name not in state:
            similar = next((other for other in state if str(other).endswith(f".{name}")), None)
            return f"tensor {quote(name)} is missing" + (f"; there is {quote(similar)}" if similar else "")
    if len(state) != len(reference):
        extra = next((name for name in state if name not in reference), None)
        return f"unexpected tensor {quote(extra)}"
    for name, expected in reference.items():
        reason = _tensor_mismatch(state[name], expected)
        if reason is not None:
            return f"tensor {quote(name)}: {reason}"
    return None


def _tensor_mismatch(value: object, expected: Tensor) -> str | None:
    if not isinstance(value, Tensor):
        return f"expected a tensor, got {type(value).__name__[:40]}"
    # Sparse, nested, quantized and meta tensors have no plain memory to average.
    if value.layout is not torch.strided or value.is_quantized or value.is_meta or value.is_nested:
        return "expected a dense tensor"
    if value.shape != expected.shape:
        return f"expected shape {_bounded_shape(expected)}, got {_bounded_shape(value)}"
    if _dtype_kind(value) != _dtype_kind(expected):
        return f"expected {_dtype_kind(expected)} values, got {_dtype_kind(value)}"
    if _dtype_kind(expected) in ("floating", "complex"):
        with torch.no_grad():
            converted = value.detach().to(expected.dtype)
            # If the sum is finite, all values are. If not, it may have overflowed, so the values are counted.
            num_nonfinite = (
                0 if bool(torch.isfinite(converted.sum())) else int((~torch.isfinite(converted)).sum())
            )
        if num_nonfinite:
            return f"{num_nonfinite} of {value.numel()} values are not finite"
    return None


def _dtype_kind(tensor: Tensor) -> str:
    """Return the kind of number: boolean, integer, floating or complex."""
    if tensor.dtype is torch.bool:
        return "boolean"
    if tensor.is_complex():
        return "complex"
    return "floating" if tensor.is_floating_point() else "integer"


def _bounded_shape(tensor: Tensor) -> str:
    """Return the shape as text, or the number of dimensions if there are many."""
    return str(tuple(tensor.shape)) if tensor.ndim <= 8 else f"of {tensor.ndim} dimensions"
