"""Convert models between Flower's ArrayRecord and state dicts.

A layout maps array names to tensors of the model. The names are those of the initial arrays, matched by name, else by
order and shape. A client may reply with the same names, or with other names in the same order. The arrays of a partial
model are matched by name only, because adapters of different layers have equal shapes. Replies are untrusted:
count, declared shape, declared size and real size are checked before a byte is decoded. Nothing is unpickled.
"""

from __future__ import annotations

import io
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from flwr.app import Array, ArrayRecord
from numpy.lib import format as npy
from torch import Tensor

from celm.base.errors import CelmError
from celm.base.text import quote as quote_name
from celm.models.state_dict import StateDict, cast_like, describe_mismatch
from celm.models.state_matching import match_names

_SERIALIZATION = "numpy.ndarray"
_DTYPES = frozenset(["b1", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "f2", "f4", "f8", "c8", "c16"])
"""Kind and bytes of the number types that numpy and torch share."""
_MAX_ITEMSIZE = 16
"""Bytes of the widest number type."""
_MAX_HEADER_BYTES = 10_000
"""The largest npy header that numpy reads."""


class InvalidReplyError(Exception):
    """A reply cannot be used; the message is bounded and escaped."""


@dataclass(frozen=True)
class ArrayLayout:
    names: tuple[str, ...]
    """Array names, in the order of `reference`."""
    reference: StateDict
    """Names, shapes and dtypes that a model must have."""
    aliases: Mapping[str, str] | None = None
    """Of a partial model: other names of its tensors, to their names in `reference`. None for a complete model."""
    encoded_cache: dict[int, tuple[Tensor, Array]] = field(default_factory=dict, repr=False)
    """Encoded tensors of one round: many clients receive the same ones."""

    @classmethod
    def from_initial_arrays(cls, record: ArrayRecord, reference: StateDict) -> ArrayLayout:
        """Build the layout of a complete model from the initial arrays, which must fit the model."""
        if set(record) == set(reference):
            layout = cls(tuple(reference), reference)
        elif len(record) == len(reference):
            layout = cls(tuple(record), reference)
        else:
            raise CelmError(
                f"initial arrays: {len(record)}, but the model has {len(reference)} tensors",
                "pass the whole model.state_dict(), buffers included; set partial=True if clients send a part of it",
            )
        return layout._check_initial_arrays(record)

    @classmethod
    def from_partial_arrays(
        cls,
        record: ArrayRecord,
        reference: StateDict,
        aliases: Mapping[str, str],
        ties: Mapping[str, tuple[str, ...]],
    ) -> ArrayLayout:
        """Build the layout of a partial model from the initial arrays, each of which must name a tensor.

        `ties` are all names of each tied tensor. If only later names are sent, the tensor is used under its first one.
        """
        tensor_of = match_names(record, reference, aliases)
        for name, tensor in tensor_of.items():
            if tensor not in reference:
                raise CelmError(
                    f"initial arrays: the model has no tensor {quote_name(name)}",
                    "names are those of model.state_dict(), or of peft's get_peft_model_state_dict(model)",
                )
        if not tensor_of:
            raise CelmError("initial arrays: there are none")
        sent = set(tensor_of.values())
        tied_aliases: dict[str, str] = {}
        for name, tensor in tensor_of.items():
            first = ties.get(tensor, (tensor,))[0]
            if first not in sent:
                tensor_of[name] = tied_aliases[tensor] = first
                sent.add(first)
        name_of = {tensor: name for name, tensor in tensor_of.items()}
        exchanged = {tensor: value for tensor, value in reference.items() if tensor in name_of}
        own_aliases = {
            alias: tensor for alias, tensor in {**aliases, **tied_aliases}.items() if tensor in exchanged
        }
        layout = cls(tuple(name_of[tensor] for tensor in exchanged), exchanged, own_aliases)
        return layout._check_initial_arrays(record)

    def _check_initial_arrays(self, record: ArrayRecord) -> ArrayLayout:
        try:
            self.decode_state(record)
        except InvalidReplyError as invalid_reply:
            raise CelmError(f"initial arrays do not fit the model: {invalid_reply}") from invalid_reply
        return self

    @property
    def num_bytes(self) -> int:
        """Return the bytes of a decoded model."""
        return sum(tensor.nbytes for tensor in self.reference.values())

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

    def decode_state(self, record: ArrayRecord) -> StateDict:
        """Return the model in a record; raise `InvalidReplyError` if it is not one."""
        arrays = self._match_arrays(record)
        for (name, array), expected in zip(arrays, self.reference.values(), strict=True):
            _check_header(name, array, expected)
        tensors = [_decode_array(name, array) for name, array in arrays]
        state = dict(zip(self.reference, tensors, strict=True))
        reason = describe_mismatch(state, self.reference)
        if reason is not None:
            raise InvalidReplyError(reason)
        return cast_like(state, self.reference)

    def _match_arrays(self, record: ArrayRecord) -> list[tuple[str, Array]]:
        """Return names and arrays in the order of the model: by name if the names are ours, else as received."""
        if self.aliases is not None and len(record) == len(self.names):
            return self._match_by_name(record, self.aliases)
        missing = [name for name in self.names if name not in record]
        if len(record) == len(self.names):
            return [(name, record[name]) for name in (self.names if not missing else record)]
        extra = next((name for name in record if name not in self.names), None)
        some_names_match = len(missing) < len(self.names)
        if some_names_match and missing and len(record) < len(self.names):
            raise InvalidReplyError(f"array {quote_name(missing[0])} is missing")
        if some_names_match and not missing:
            raise InvalidReplyError(f"unexpected array {quote_name(extra)}")
        raise InvalidReplyError(f"expected {len(self.names)} arrays, got {len(record)}")

    def _match_by_name(self, record: ArrayRecord, aliases: Mapping[str, str]) -> list[tuple[str, Array]]:
        """Return names and arrays of a partial model, which may have any of its names but no others."""
        tensor_of = match_names(
            record, self.reference, {**aliases, **dict(zip(self.names, self.reference, strict=True))}
        )
        name_of = {tensor: name for name, tensor in tensor_of.items()}
        for name, tensor in zip(self.names, self.reference, strict=True):
            if tensor not in name_of:
                extra = next(other for other, matched in tensor_of.items() if matched not in self.reference)
                raise InvalidReplyError(
                    f"array {quote_name(name)} is missing; unexpected array {quote_name(extra)}"
                )
        return [(name_of[tensor], record[name_of[tensor]]) for tensor in self.reference]


def _encode_array(tensor: Tensor) -> Array:
    try:
        return Array(tensor.detach().cpu().contiguous().numpy())
    except TypeError as error:
        raise CelmError(
            f"Flower cannot send tensors of type {tensor.dtype}", "convert the model to float32"
        ) from error


def _check_header(name: str, array: Array, expected: Tensor) -> None:
    """Check the declared type and shape and the real size of an array."""
    if array.stype != _SERIALIZATION:
        raise InvalidReplyError(
            f"array {quote_name(name)}: unknown serialization {quote_name(array.stype, 40)}"
        )
    if tuple(array.shape) != tuple(expected.shape):
        raise InvalidReplyError(
            f"array {quote_name(name)}: expected shape {tuple(expected.shape)}, declared {_format_shape(array.shape)}"
        )
    max_bytes = expected.numel() * _MAX_ITEMSIZE + _MAX_HEADER_BYTES
    if len(array.data) > max_bytes:
        raise InvalidReplyError(
            f"array {quote_name(name)}: {len(array.data)} bytes are too many for its shape"
        )


def _decode_array(name: str, array: Array) -> Tensor:
    """Decode an array; its npy header must agree with its declaration."""
    try:
        return torch.from_numpy(_parse_npy(array))
    except InvalidReplyError as invalid_reply:
        raise InvalidReplyError(f"array {quote_name(name)}: {invalid_reply}") from None
    except Exception as error:  # arbitrary bytes make numpy raise many types of error
        raise InvalidReplyError(
            f"array {quote_name(name)}: cannot be read ({type(error).__name__})"
        ) from None


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


def _format_shape(shape: Sequence[int]) -> str:
    return str(tuple(shape)) if len(shape) <= 8 else f"of {len(shape)} dimensions"
