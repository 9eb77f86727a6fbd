"""State dicts from archives of `torch.save`, read without unpickling: nothing that a file names is called.

Such an archive is a zip with data.pkl, a program for a stack machine, and one entry of raw bytes for each storage. The
program of a state dict uses few opcodes. The functions it names build ordered dicts, parameters, and tensors of stored
bytes. This reader supports only those and refuses all others by name. `torch.load(weights_only=True)` supports more and
runs no code either, but allocates as much memory as a small file asks for, for example by `bytearray(10**12)`.

Here an opcode builds at most one small object and never copies one; the number of opcodes is bounded. A tensor is a
view of a storage. A storage has exactly the bytes that the archive has for it.
"""

from __future__ import annotations

import pickletools
import sys
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from celm.base.errors import CelmError
from celm.base.text import quote

_PICKLE_NAME = "data.pkl"
MAX_PICKLE_BYTES = 8 << 20
"""Largest data.pkl in bytes; a tensor takes about 200."""
MAX_OPCODES = 500_000
"""Largest number of opcodes; a tensor takes about 30."""
_MAX_DIMS = 64

_STORAGE_DTYPES = {
    "torch DoubleStorage": torch.float64,
    "torch FloatStorage": torch.float32,
    "torch HalfStorage": torch.float16,
    "torch BFloat16Storage": torch.bfloat16,
    "torch LongStorage": torch.int64,
    "torch IntStorage": torch.int32,
    "torch ShortStorage": torch.int16,
    "torch CharStorage": torch.int8,
    "torch ByteStorage": torch.uint8,
    "torch BoolStorage": torch.bool,
    "torch ComplexFloatStorage": torch.complex64,
    "torch ComplexDoubleStorage": torch.complex128,
}
_ORDERED_DICT, _TORCH_SIZE = "collections OrderedDict", "torch Size"
_TENSOR_BUILDERS = ("torch._utils _rebuild_tensor_v2", "torch._utils _rebuild_tensor")
_PARAMETER_BUILDERS = ("torch._utils _rebuild_parameter", "torch._utils _rebuild_parameter_with_state")
_ALLOWED_GLOBALS = {*_STORAGE_DTYPES, _ORDERED_DICT, _TORCH_SIZE, *_TENSOR_BUILDERS, *_PARAMETER_BUILDERS}

_CONSTANT_OPCODES = {"NONE": None, "NEWTRUE": True, "NEWFALSE": False, "EMPTY_TUPLE": ()}
_VALUE_OPCODES = ("BININT", "BININT1", "BININT2", "LONG1", "BINFLOAT", "BINUNICODE", "SHORT_BINSTRING")
_TUPLE_OPCODES = {"TUPLE1": 1, "TUPLE2": 2, "TUPLE3": 3}
_HINT = "save the state dict alone, best as safetensors"


@dataclass(frozen=True)
class _GlobalRef:
    """A function or class named by the program."""

    name: str


@dataclass(frozen=True)
class _Storage:
    values: Tensor
    """`[count]`"""


@dataclass
class _StateDictUnpickler:
    """The stack machine of one archive."""

    archive: zipfile.ZipFile
    folder: str
    """The archive's folder, which ends with a slash."""
    stack: list[Any] = field(default_factory=list)
    marks: list[int] = field(default_factory=list)
    memo: dict[int, Any] = field(default_factory=dict)
    storages: dict[str, _Storage] = field(default_factory=dict)

    def run(self, pickle_bytes: bytes) -> Any:
        """Run the program and return the object on top of the stack."""
        for count, (instruction, argument, _) in enumerate(pickletools.genops(pickle_bytes)):
            if count == MAX_OPCODES:
                raise CelmError(f"{_PICKLE_NAME} is too large: more than {MAX_OPCODES:,} opcodes", _HINT)
            if instruction.name == "STOP":
                break
            self._execute(instruction.name, argument)
        return self.stack.pop()

    def _execute(self, opcode: str, argument: Any) -> None:
        stack = self.stack
        if opcode in _VALUE_OPCODES:
            stack.append(argument)
        elif opcode in _CONSTANT_OPCODES:
            stack.append(_CONSTANT_OPCODES[opcode])
        elif opcode in ("BINPUT", "LONG_BINPUT"):
            self.memo[argument] = stack[-1]
        elif opcode in ("BINGET", "LONG_BINGET"):
            stack.append(self.memo[argument])
        elif opcode == "EMPTY_DICT":
            stack.append({})
        elif opcode == "EMPTY_LIST":
            stack.append([])
        elif opcode == "MARK":
            self.marks.append(len(stack))
        elif opcode == "TUPLE":
            stack.append(tuple(self._pop_from(self.marks.pop())))
        elif opcode in _TUPLE_OPCODES:
            stack.append(tuple(self._pop_from(len(stack) - _TUPLE_OPCODES[opcode])))
        elif opcode == "GLOBAL":
            stack.append(_allowed_global(argument))
        elif opcode == "BINPERSID":
            stack.append(self._load_storage(*stack.pop()))
        elif opcode == "REDUCE":
            function, arguments = self._pop_from(len(stack) - 2)
            stack.append(_reduce(function, arguments))
        elif opcode == "BUILD":  # PyTorch attaches module versions to a state dict
            _ = stack.pop()
            _expect_type(stack[-1], dict)
        elif opcode in ("APPEND", "APPENDS"):
            items = self._pop_from(len(stack) - 1 if opcode == "APPEND" else self.marks.pop())
            _expect_type(stack[-1], list).extend(items)
        elif opcode in ("SETITEM", "SETITEMS"):
            items = self._pop_from(len(stack) - 2 if opcode == "SETITEM" else self.marks.pop())
            _set_items(_expect_type(stack[-1], dict), items)
        elif opcode != "PROTO":
            raise CelmError(f"unsupported opcode in {_PICKLE_NAME}: {opcode}", _HINT)

    def _pop_from(self, start: int) -> list[Any]:
        """Pop the part of the stack that begins at index `start`."""
        if start < 0 or start > len(self.stack):
            raise CelmError(f"damaged {_PICKLE_NAME}: stack underflow")
        items = self.stack[start:]
        del self.stack[start:]
        return items

    def _load_storage(
        self, tag: Any, storage_type: Any, key: Any, _location: Any, num_values: Any
    ) -> _Storage:
        """Return the storage of an archive entry. Each entry is read once."""
        if (
            tag != "storage"
            or not isinstance(storage_type, _GlobalRef)
            or storage_type.name not in _STORAGE_DTYPES
            or type(key) is not str
        ):
            raise CelmError(f"unsupported persistent id in {_PICKLE_NAME}: not a storage", _HINT)
        dtype = _STORAGE_DTYPES[storage_type.name]
        if key not in self.storages:
            content = bytearray(self.archive.read(f"{self.folder}data/{key}"))
            values = torch.frombuffer(content, dtype=dtype) if content else torch.empty(0, dtype=dtype)
            self.storages[key] = _Storage(values)
        stored = self.storages[key].values
        if stored.dtype != dtype or type(num_values) is not int or len(stored) != num_values:
            raise CelmError(f"storage {quote(key)}: size or dtype is not as claimed")
        return self.storages[key]


def read_state_dict(archive: zipfile.ZipFile) -> Any:
    """Return the saved object of an archive: a state dict, or a dict that contains one beside other values."""
    pickles = [entry for entry in archive.infolist() if entry.filename.partition("/")[2] == _PICKLE_NAME]
    if len(pickles) != 1:
        raise CelmError(f"not a PyTorch archive: {len(pickles)} files named {_PICKLE_NAME}, expected 1")
    if pickles[0].file_size > MAX_PICKLE_BYTES:
        size = pickles[0].file_size
        raise CelmError(f"{_PICKLE_NAME} is too large: {size:,} bytes, at most {MAX_PICKLE_BYTES:,}", _HINT)
    folder = pickles[0].filename.removesuffix(_PICKLE_NAME)
    if f"{folder}byteorder" in archive.namelist():
        byte_order = archive.read(f"{folder}byteorder")
        if byte_order != sys.byteorder.encode():
            claimed = quote(byte_order.decode("latin-1"))
            raise CelmError(f"unsupported byte order: {claimed}, expected '{sys.byteorder}'")
    return _StateDictUnpickler(archive, folder).run(archive.read(pickles[0]))


def _allowed_global(name: str) -> _GlobalRef:
    if name not in _ALLOWED_GLOBALS:
        raise CelmError(f"unsupported name in {_PICKLE_NAME}: {quote(name)}", _HINT)
    return _GlobalRef(name)


def _reduce(function: Any, arguments: Any) -> Any:
    """Call one of the supported functions. A parameter becomes its tensor, a size becomes a tuple."""
    name = function.name if isinstance(function, _GlobalRef) else None
    checked = _expect_type(arguments, tuple)
    if name == _ORDERED_DICT and not checked:
        return {}
    if name in _TENSOR_BUILDERS:
        return _tensor_view(*checked[:4])
    if name in _PARAMETER_BUILDERS:
        return _expect_type(checked[0], Tensor)
    if name == _TORCH_SIZE and len(checked) == 1:
        return _expect_type(checked[0], tuple)
    raise CelmError(f"unsupported call in {_PICKLE_NAME}", _HINT)


def _tensor_view(storage: Any, start: Any, shape: Any, strides: Any) -> Tensor:
    """Return the view of a storage that begins at `start`, after checking that it lies within the storage."""
    numbers = [start, *_expect_type(shape, tuple), *_expect_type(strides, tuple)]
    if len(shape) != len(strides) or len(shape) > _MAX_DIMS:
        raise CelmError(f"damaged {_PICKLE_NAME}: invalid shape of a tensor")
    if any(type(number) is not int or not 0 <= number < 1 << 48 for number in numbers):
        raise CelmError(f"damaged {_PICKLE_NAME}: invalid shape of a tensor")
    values: Tensor = _expect_type(storage, _Storage).values
    last_index = start + sum((size - 1) * stride for size, stride in zip(shape, strides, strict=True))
    if 0 not in shape and last_index >= values.numel():
        raise CelmError(f"damaged {_PICKLE_NAME}: a tensor claims more values than its storage has")
    return values.as_strided(shape, strides, 0 if 0 in shape else start)


def _set_items(target: dict[Any, Any], items: Sequence[Any]) -> None:
    for key, value in zip(items[::2], items[1::2], strict=True):
        if not isinstance(key, str | int | bytes):  # hashing a nested tuple can take exponential time
            raise CelmError(f"unsupported dict key: {type(key).__name__[:40]}", _HINT)
        target[key] = value


def _expect_type(value: Any, kind: type) -> Any:
    if not isinstance(value, kind):
        expected, actual = kind.__name__.lstrip("_"), type(value).__name__.lstrip("_")[:40]
        raise CelmError(f"damaged {_PICKLE_NAME}: expected {expected}, got {actual}")
    return value
