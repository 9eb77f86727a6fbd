"""Convert models between NVFlare's parameters and state dicts.

Parameters are PyTorch tensors or numpy arrays by name. NVFlare decodes them before the controller sees them, and
never unpickles. Type and shape are checked before an array is used.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from celm.base.text import quote as quote_name
from celm.live.array_layout import ArrayLayout, InvalidReplyError, format_shape

_NUMBER_KINDS = "biufc"
"""Kinds of numpy types that are numbers."""


@dataclass(frozen=True)
class TensorLayout(ArrayLayout[Any]):
    as_numpy: bool = False
    """Whether sites are sent numpy arrays, as with NVFlare's exchange format `numpy`."""

    def encode_state(self, state: Mapping[str, Tensor]) -> dict[str, Any]:
        tensors = {
            name: state[key].detach().cpu() for name, key in zip(self.names, self.reference, strict=True)
        }
        return {name: tensor.numpy() for name, tensor in tensors.items()} if self.as_numpy else tensors

    def check_array(self, name: str, array: Any, expected: Tensor) -> None:
        """Check the type and the shape of an array."""
        is_tensor = isinstance(array, Tensor) and array.layout == torch.strided and not array.is_meta
        is_numpy = isinstance(array, np.ndarray | np.generic) and array.dtype.kind in _NUMBER_KINDS
        if not is_tensor and not is_numpy:
            raise InvalidReplyError(
                f"array {quote_name(name)}: expected a tensor, got {quote_name(type(array).__name__, 40)}"
            )
        if tuple(array.shape) != tuple(expected.shape):
            raise InvalidReplyError(
                f"array {quote_name(name)}: expected shape {tuple(expected.shape)}, "
                f"got {format_shape(tuple(array.shape))}"
            )

    def decode_array(self, name: str, array: Any) -> Tensor:
        """Return a copy of an array as a tensor."""
        if isinstance(array, Tensor):
            return array.detach().cpu().clone()
        native = np.array(array, dtype=array.dtype.newbyteorder("="))
        try:
            return torch.from_numpy(native)
        except TypeError:
            raise InvalidReplyError(
                f"array {quote_name(name)}: {native.dtype} is not a number type of models"
            ) from None
