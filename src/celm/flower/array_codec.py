"""Convert models between Flower's ArrayRecord and state dicts.

Count, declared shape, declared size and real size of an array are checked before a byte is decoded. Nothing is
unpickled.
"""

from __future__ import annotations

import io
import math
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
import torch
from flwr.app import Array, ArrayRecord
from numpy.lib import format as npy
from torch import Tensor

from celm.base.errors import CelmError
from celm.base.text import quote as quote_name
from celm.live.array_layout import ArrayLayout, InvalidReplyError, format_shape

_SERIALIZATION = "numpy.ndarray"
_DTYPES = frozenset(["b1", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "f2", "f4", "f8", "c8", "c16"])
"""Kind and bytes of the number types that numpy and torch share."""
_MAX_ITEMSIZE = 16
"""Bytes of the widest number type."""
_MAX_HEADER_BYTES = 10_000
"""The largest npy header that numpy reads."""


@dataclass(frozen=True)
class FlowerLayout(ArrayLayout[Array]):
    encoded_cache: dict[int, tuple[Tensor, Array]] = field(default_factory=dict, repr=False)
    """Encoded tensors of one round: many clients receive the same ones."""

    def encode_state(self, state: Mapping[str, Tensor]) -> ArrayRecord:
        return ArrayRecord(
            {
                name: self._encode_cached(state[key])
                for name, key in zip(self.names, self.reference, strict=True)
            }
        )

    def _encode_cached(self, tensor: Tensor) -> Array:
        if id(tensor) not in self.encoded_cache:
            # Keep the tensor too, so that no other tensor can get its id.
            self.encoded_cache[id(tensor)] = (tensor, _encode_array(tensor))
        return self.encoded_cache[id(tensor)][1]

    def check_array(self, name: str, array: Array, expected: Tensor) -> None:
        """Check the declared type and shape and the real size of an array."""
        if array.stype != _SERIALIZATION:
            raise InvalidReplyError(
                f"array {quote_name(name)}: unknown serialization {quote_name(array.stype, 40)}"
            )
        if tuple(array.shape) != tuple(expected.shape):
            raise InvalidReplyError(
                f"array {quote_name(name)}: expected shape {tuple(expected.shape)}, "
                f"declared {format_shape(tuple(array.shape))}"
            )
        max_bytes = expected.numel() * _MAX_ITEMSIZE + _MAX_HEADER_BYTES
        if len(array.data) > max_bytes:
            raise InvalidReplyError(
                f"array {quote_name(name)}: {len(array.data)} bytes are too many for its shape"
            )

    def decode_array(self, name: str, array: Array) -> Tensor:
        """Decode an array; its npy header must agree with its declaration."""
        try:
            return torch.from_numpy(_parse_npy(array))
        except InvalidReplyError as invalid_reply:
            raise InvalidReplyError(f"array {quote_name(name)}: {invalid_reply}") from None
        except Exception as error:  # arbitrary bytes make numpy raise many types of error
            raise InvalidReplyError(
                f"array {quote_name(name)}: cannot be read ({type(error).__name__})"
            ) from None


def _encode_array(tensor: Tensor) -> Array:
    try:
        return Array(tensor.detach().cpu().contiguous().numpy())
    except TypeError as error:
        raise CelmError(
            f"Flower cannot send tensors of type {tensor.dtype}", "convert the model to float32"
        ) from error


def _parse_npy(array: Array) -> np.ndarray:
    stream = io.BytesIO(array.data)
    version = npy.read_magic(stream)
    read_header = npy.read_array_header_1_0 if version == (1, 0) else npy.read_array_header_2_0
    shape, fortran, dtype = read_header(stream)
    if f"{dtype.kind}{dtype.itemsize}" not in _DTYPES:
        raise InvalidReplyError(f"{quote_name(str(dtype), 40)} is not a number type of models")
    content = memoryview(array.data)[stream.tell() :]
    # Check before allocating: a header can claim any size.
    if shape != tuple(array.shape) or content.nbytes != math.prod(shape) * dtype.itemsize:
        raise InvalidReplyError("its content does not match its declaration")
    flat = np.frombuffer(content, dtype=dtype)
    native = flat.astype(dtype.newbyteorder("="))  # a copy: the bytes belong to the message
    return native.reshape(shape, order="F" if fortran else "C")
