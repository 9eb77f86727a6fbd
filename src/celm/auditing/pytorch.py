"""State dicts in archives of `torch.save`, read without unpickling: nothing that they name can be called.

Such an archive is a zip with data.pkl, a program for a stack machine, and one entry of raw bytes for each storage. The
programs of state dicts are made of few instructions, and the functions they name make ordered dicts, parameters, and
tensors of stored bytes. Only these are known here; all else is refused by its name. `torch.load(weights_only=True)`
knows more, and runs no code either, but takes as much memory as a file of a few bytes asks for, as by
`bytearray(10**12)`.

Here an instruction makes one small object at most, and never a copy; their number is bounded. A tensor is a view of a
storage, and a storage has as many bytes as the archive has for it.
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
from celm.models.state import shown

PROGRAM = "data.pkl"
LONGEST = 8 << 20
"""Bytes of a program: some 200 for each tensor."""
MOST = 500_000
"""Instructions: some 30 for each tensor."""
DIMENSIONS = 64

STORAGES = {
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
DICT, SIZE = "collections OrderedDict", "torch Size"
TENSORS = ("torch._utils _rebuild_tensor_v2", "torch._utils _rebuild_tensor")
PARAMETERS = ("torch._utils _rebuild_parameter", "torch._utils _rebuild_parameter_with_state")
KNOWN = {*STORAGES, DICT, SIZE, *TENSORS, *PARAMETERS}

CONSTANTS = {"NONE": None, "NEWTRUE": True, "NEWFALSE": False, "EMPTY_TUPLE": ()}
VALUES = ("BININT", "BININT1", "BININT2", "LONG1", "BINFLOAT", "BINUNICODE", "SHORT_BINSTRING")
TUPLES = {"TUPLE1": 1, "TUPLE2": 2, "TUPLE3": 3}
HINT = "save the state dict alone, best as safetensors"


@dataclass(frozen=True)
class Name:
    """A function or class that the program names."""

    of: str


@dataclass(frozen=True)
class Storage:
    values: Tensor
    """`[count]`"""


@dataclass
class Program:
    """The program of one archive, under way."""

    archive: zipfile.ZipFile
    folder: str
    """In the archive; ends with a slash."""
    stack: list[Any] = field(default_factory=list)
    marks: list[int] = field(default_factory=list)
    memo: dict[int, Any] = field(default_factory=dict)
    storages: dict[str, Storage] = field(default_factory=dict)

    def run(self, program: bytes) -> Any:
        for count, (instruction, argument, _) in enumerate(pickletools.genops(program)):
            if count == MOST:
                raise CelmError("has far more in it than a state dict", HINT)
            if instruction.name == "STOP":
                break
            self.step(instruction.name, argument)
        return self.stack.pop()

    def step(self, name: str, argument: Any) -> None:
        stack = self.stack
        if name in VALUES:
            stack.append(argument)
        elif name in CONSTANTS:
            stack.append(CONSTANTS[name])
        elif name in ("BINPUT", "LONG_BINPUT"):
            self.memo[argument] = stack[-1]
        elif name in ("BINGET", "LONG_BINGET"):
            stack.append(self.memo[argument])
        elif name == "EMPTY_DICT":
            stack.append({})
        elif name == "EMPTY_LIST":
            stack.append([])
        elif name == "MARK":
            self.marks.append(len(stack))
        elif name == "TUPLE":
            stack.append(tuple(self.since(self.marks.pop())))
        elif name in TUPLES:
            stack.append(tuple(self.since(len(stack) - TUPLES[name])))
        elif name == "GLOBAL":
            stack.append(known(argument))
        elif name == "BINPERSID":
            stack.append(self.storage(*stack.pop()))
        elif name == "REDUCE":
            function, arguments = self.since(len(stack) - 2)
            stack.append(called(function, arguments))
        elif name == "BUILD":  # the versions of modules, which PyTorch keeps beside their tensors
            _ = stack.pop()
            of_kind(stack[-1], dict)
        elif name in ("APPEND", "APPENDS"):
            items = self.since(len(stack) - 1 if name == "APPEND" else self.marks.pop())
            of_kind(stack[-1], list).extend(items)
        elif name in ("SETITEM", "SETITEMS"):
            items = self.since(len(stack) - 2 if name == "SETITEM" else self.marks.pop())
            put(of_kind(stack[-1], dict), items)
        elif name != "PROTO":
            raise CelmError(f"has an instruction that no state dict needs, {name}", HINT)

    def since(self, start: int) -> list[Any]:
        """Take off what was put on the stack from there on."""
        if start < 0 or start > len(self.stack):
            raise CelmError("is damaged: its program takes what is not there")
        items = self.stack[start:]
        del self.stack[start:]
        return items

    def storage(self, word: Any, kind: Any, key: Any, _place: Any, count: Any) -> Storage:
        """An entry of the archive."""
        if word != "storage" or not isinstance(kind, Name) or kind.of not in STORAGES or type(key) is not str:
            raise CelmError("refers to something that is no storage", HINT)
        dtype = STORAGES[kind.of]
        if key not in self.storages:
            content = bytearray(self.archive.read(f"{self.folder}data/{key}"))
            values = torch.frombuffer(content, dtype=dtype) if content else torch.empty(0, dtype=dtype)
            self.storages[key] = Storage(values)
        found = self.storages[key].values
        if found.dtype != dtype or type(count) is not int or len(found) != count:
            raise CelmError(f"storage {shown(key)} is not of the size or kind that is claimed")
        return self.storages[key]


def read_state_dict(archive: zipfile.ZipFile) -> Any:
    """What the program of an archive leaves: a state dict, or what a training loop saved beside one."""
    programs = [entry for entry in archive.infolist() if entry.filename.partition("/")[2] == PROGRAM]
    if len(programs) != 1:
        raise CelmError(f"is not a PyTorch archive: it has no {PROGRAM}")
    if programs[0].file_size > LONGEST:
        raise CelmError("has far more in it than a state dict", HINT)
    folder = programs[0].filename.removesuffix(PROGRAM)
    if f"{folder}byteorder" in archive.namelist():
        order = archive.read(f"{folder}byteorder")
        if order != sys.byteorder.encode():
            raise CelmError(f"has the byte order {shown(order.decode('latin-1'))}, not '{sys.byteorder}'")
    return Program(archive, folder).run(archive.read(programs[0]))


def known(name: str) -> Name:
    if name not in KNOWN:
        raise CelmError(f"names {shown(name)}, which is no part of a state dict", HINT)
    return Name(name)


def called(function: Any, arguments: Any) -> Any:
    """What the few functions make; parameters are their tensors, and sizes are tuples."""
    name = function.of if isinstance(function, Name) else None
    given = of_kind(arguments, tuple)
    if name == DICT and not given:
        return {}
    if name in TENSORS:
        return view(*given[:4])
    if name in PARAMETERS:
        return of_kind(given[0], Tensor)
    if name == SIZE and len(given) == 1:
        return of_kind(given[0], tuple)
    raise CelmError("calls something in a way that no state dict does", HINT)


def view(storage: Any, start: Any, shape: Any, strides: Any) -> Tensor:
    """The tensor of this shape that begins at `start`, where all of it is in the storage."""
    numbers = [start, *of_kind(shape, tuple), *of_kind(strides, tuple)]
    if len(shape) != len(strides) or len(shape) > DIMENSIONS:
        raise CelmError("is damaged: a tensor has no shape")
    if any(type(number) is not int or not 0 <= number < 1 << 48 for number in numbers):
        raise CelmError("is damaged: a tensor has no shape")
    values: Tensor = of_kind(storage, Storage).values
    last = start + sum((size - 1) * stride for size, stride in zip(shape, strides, strict=True))
    if 0 not in shape and last >= values.numel():
        raise CelmError("is damaged: a tensor claims more values than the file holds")
    return values.as_strided(shape, strides, 0 if 0 in shape else start)


def put(target: dict[Any, Any], items: Sequence[Any]) -> None:
    for key, value in zip(items[::2], items[1::2], strict=True):
        if not isinstance(key, str | int | bytes):  # the hash of a nested tuple may take for ever
            raise CelmError(
                f"has a key that is neither text nor a number but {type(key).__name__[:40]}", HINT
            )
        target[key] = value


def of_kind(value: Any, kind: type) -> Any:
    if not isinstance(value, kind):
        raise CelmError(f"is damaged: expected {kind.__name__}, got {type(value).__name__[:40]}")
    return value
