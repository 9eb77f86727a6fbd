"""A model between Flower's ArrayRecord and a state dict.

A layout says under which name each tensor travels. The names are those of the arrays that the server begins with;
they are matched to the model's own by name, else by order and shape. A client may answer under the same names, or
under any others in the same order. What it sends is untrusted: number, declared shape, declared and real size
are compared before a byte is decoded, and nothing is unpickled.
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
from celm.models.state import StateDict, conform, describe_mismatch, shown

SERIALIZATION = "numpy.ndarray"
NUMBERS = frozenset(["b1", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "f2", "f4", "f8", "c8", "c16"])
"""The kinds of number, and their bytes, that numpy and torch share."""
WIDEST = 16
"""Bytes of the widest of them."""
HEADER = 10_000
"""Bytes that an array's own header may take, as numpy bounds it."""


class Refusal(Exception):  # noqa: N818 - of a reply, not an error of ours
    """Why something a client sent cannot be used; the text is bounded and escaped."""


@dataclass(frozen=True)
class Layout:
    names: tuple[str, ...]
    """Under which a model's tensors travel, in the order of `reference`."""
    reference: StateDict
    """What a model must fit."""
    encoded: dict[int, tuple[Tensor, Array]] = field(default_factory=dict, repr=False)
    """Tensors in their encoded form, while the same ones go to many clients."""

    @classmethod
    def of(cls, record: ArrayRecord, reference: StateDict) -> Layout:
        """The layout of the arrays that a federation begins with, which must fit the model."""
        if set(record) == set(reference):
            layout = cls(tuple(reference), reference)
        elif len(record) == len(reference):
            layout = cls(tuple(record), reference)
        else:
            raise CelmError(
                f"the initial arrays are {len(record)}, but the model has {len(reference)} tensors",
                "give all of model.state_dict(), buffers included",
            )
        try:
            layout.unpack(record)
        except Refusal as refusal:
            raise CelmError(f"the initial arrays do not fit the model: {refusal}") from refusal
        return layout

    def pack(self, state: Mapping[str, Tensor]) -> ArrayRecord:
        return ArrayRecord(
            {name: self.encode(state[key]) for name, key in zip(self.names, self.reference, strict=True)}
        )

    def encode(self, tensor: Tensor) -> Array:
        if id(tensor) not in self.encoded:
            # The tensor is kept beside, so that its identity is not given to another one meanwhile.
            self.encoded[id(tensor)] = (tensor, encode(tensor))
        return self.encoded[id(tensor)][1]

    def unpack(self, record: ArrayRecord) -> StateDict:
        """The model in a record; a `Refusal` says what keeps it from being one."""
        arrays = self.arranged(record)
        for (name, array), expected in zip(arrays, self.reference.values(), strict=True):
            check_declared(name, array, expected)
        tensors = [decode(name, array) for name, array in arrays]
        state = dict(zip(self.reference, tensors, strict=True))
        reason = describe_mismatch(state, self.reference)
        if reason is not None:
            raise Refusal(reason)
        return conform(state, self.reference)

    def arranged(self, record: ArrayRecord) -> list[tuple[str, Array]]:
        """Names and arrays in the order of the model: by name where the names are ours, else as they come."""
        missing = [name for name in self.names if name not in record]
        if len(record) == len(self.names):
            return [(name, record[name]) for name in (self.names if not missing else record)]
        extra = next((name for name in record if name not in self.names), None)
        ours = len(missing) < len(self.names)
        if ours and missing and len(record) < len(self.names):
            raise Refusal(f"array {shown(missing[0])} is missing")
        if ours and not missing:
            raise Refusal(f"unexpected array {shown(extra)}")
        raise Refusal(f"expected {len(self.names)} arrays, got {len(record)}")


def encode(tensor: Tensor) -> Array:
    try:
        return Array(tensor.detach().cpu().contiguous().numpy())
    except TypeError as error:
        raise CelmError(
            f"a tensor of type {tensor.dtype} cannot travel in Flower", "convert the model to float32"
        ) from error


def check_declared(name: str, array: Array, expected: Tensor) -> None:
    """Compare what is said of an array, and the size of what came, with what is expected."""
    if array.stype != SERIALIZATION:
        raise Refusal(f"array {shown(name)}: unknown serialization {shown(array.stype, 40)}")
    if tuple(array.shape) != tuple(expected.shape):
        raise Refusal(
            f"array {shown(name)}: expected shape {tuple(expected.shape)}, declared {said(array.shape)}"
        )
    bound = expected.numel() * WIDEST + HEADER
    if len(array.data) > bound:
        raise Refusal(f"array {shown(name)}: {len(array.data)} bytes are too many for its shape")


def decode(name: str, array: Array) -> Tensor:
    """The tensor in an array whose size is as declared; its own header must say the same."""
    try:
        return torch.from_numpy(values_of(array))
    except Refusal as refusal:
        raise Refusal(f"array {shown(name)}: {refusal}") from None
    except Exception as error:  # bytes can be anything, and numpy fails in many ways
        raise Refusal(f"array {shown(name)}: cannot be read ({type(error).__name__})") from None


def values_of(array: Array) -> np.ndarray:
    stream = io.BytesIO(array.data)
    version = npy.read_magic(stream)
    read = npy.read_array_header_1_0 if version == (1, 0) else npy.read_array_header_2_0
    shape, fortran, kind = read(stream)
    if f"{kind.kind}{kind.itemsize}" not in NUMBERS:
        raise Refusal(f"{shown(str(kind), 40)} is no kind of number that a model has")
    content = memoryview(array.data)[stream.tell() :]
    # Before anything is allocated: a header could claim any size.
    if shape != tuple(array.shape) or content.nbytes != math.prod(shape) * kind.itemsize:
        raise Refusal("its content is not what it declares")
    flat = np.frombuffer(content, dtype=kind)
    native = flat.astype(kind.newbyteorder("="))  # a copy: the bytes belong to the message
    return native.reshape(shape, order="F" if fortran else "C")


def said(shape: Sequence[int]) -> str:
    return str(tuple(shape)) if len(shape) <= 8 else f"of {len(shape)} dimensions"
