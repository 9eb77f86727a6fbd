"""Archives of PyTorch are read as by torch.load, in memory bounded by their size."""

from __future__ import annotations

import io
import pickle
import struct
import tracemalloc
import zipfile
from collections import Counter, OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from auditing.conftest import rewritten
from celm.auditing import torch_archive
from celm.auditing.checkpoint_reader import ENTRY_MAGIC, MAX_ENTRIES, parse_checkpoint
from celm.auditing.torch_archive import read_state_dict
from celm.base.errors import CelmError

LARGEST = 64 << 20
ROOM = 8 << 20
"""Largest number of bytes that reading a small hostile file may take."""
PROGRAM = "archive/data.pkl"


def saved(value: object, **options: Any) -> bytes:
    content = io.BytesIO()
    torch.save(value, content, **options)
    return content.getvalue()


def read(content: bytes) -> Any:
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        return read_state_dict(archive)


def program(code: bytes) -> bytes:
    """Return an archive with this program."""
    return rewritten(saved({"w": torch.zeros(2, 3)}), {PROGRAM: code})


def equal(ours: Any, theirs: Any) -> bool:
    if isinstance(theirs, dict):
        return list(ours) == list(theirs) and all(equal(ours[key], theirs[key]) for key in theirs)
    if isinstance(theirs, list | tuple):
        return len(ours) == len(theirs) and all(map(equal, ours, theirs))
    if isinstance(theirs, Tensor):
        same = ours.dtype == theirs.dtype and ours.shape == theirs.shape and ours.stride() == theirs.stride()
        return same and torch.equal(ours, theirs)
    return bool(ours == theirs)


def trained() -> dict[str, Any]:
    """Return the checkpoint of a training loop: a model with buffers, its optimiser, and numbers."""
    model = nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2), nn.Flatten(), nn.Linear(8, 3))
    optimiser = torch.optim.AdamW([{"params": [each]} for each in model.parameters()])
    model(torch.randn(4, 1, 4, 4)).sum().backward()
    optimiser.step()
    state = {"model": model.state_dict(), "optimizer": optimiser.state_dict()}
    return state | {
        "epoch": 70_000,
        "best": 0.25,
        "shape": torch.Size([1, 4, 4]),
        "done": False,
        "note": None,
    }


KINDS = [torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.int64, torch.int32, torch.int16]
KINDS += [torch.int8, torch.uint8, torch.bool, torch.complex64, torch.complex128]
BASE = torch.arange(60.0)
CASES: dict[str, Any] = {
    "state dict": nn.Linear(2, 3).state_dict(),
    "training loop": trained(),
    "parameters": OrderedDict(nn.Linear(2, 3).named_parameters()),
    "kinds": {str(kind): torch.arange(6).reshape(2, 3).to(kind) for kind in KINDS},
    "transposed": {"w": BASE.view(3, 20).T},
    "parts of one storage": {"a": BASE[3:9], "b": BASE[5:50:7], "c": BASE.view(5, 12)[1:, ::3]},
    "expanded": {"w": torch.ones(1, 3).expand(4, 3)},
    "empty and scalar": {"none": torch.empty(0, 3), "part": BASE[60:], "one": torch.tensor(3.0)},
    "tied": (lambda tensor: {"a": tensor, "b": tensor})(torch.randn(2, 2)),
    "numbers": {
        "a": [1, -1, 300, 1 << 40, 1.5, (), (1,), (1, 2), (1, 2, 3), (1, 2, 3, 4), [], {}, True, None]
    },
}


@pytest.mark.parametrize("value", CASES.values(), ids=CASES)
def test_archives_are_read_as_by_torch(value: Any) -> None:
    content = saved(value)
    assert equal(read(content), torch.load(io.BytesIO(content), weights_only=True))


@given(
    sides=st.lists(st.integers(0, 4), max_size=4), seed=st.integers(0, 99), order=st.permutations(range(4))
)
@settings(max_examples=60, deadline=None)
def test_tensors_of_any_shape_and_order_are_read(sides: list[int], seed: int, order: list[int]) -> None:
    whole = torch.randn(sides, generator=torch.Generator().manual_seed(seed))
    turned = whole.permute([axis for axis in order if axis < len(sides)])
    tensors = read(saved({"w": turned, "part": turned[..., 1:] if sides else turned}))
    assert torch.equal(tensors["w"], turned)
    assert tensors["w"].stride() == turned.stride()


@contextmanager
def little_memory() -> Iterator[None]:
    tracemalloc.start()
    try:
        yield
        taken = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert taken < ROOM, f"{taken:,} bytes"


class Call:
    def __init__(self, *call: Any) -> None:
        self.call = call

    def __reduce__(self) -> Any:
        return self.call[0], self.call[1:]


MANY = 300 << 20


@pytest.mark.parametrize(
    ("value", "named"),
    [
        (Call(bytearray, MANY), "__builtin__ bytearray"),
        (Call(torch.Tensor, MANY), "torch Tensor"),
        (Call(torch.UntypedStorage, MANY), "torch.storage UntypedStorage"),
        (Counter(a=3), "collections Counter"),
        ({1, 2}, "__builtin__ set"),
        (b"bytes", "_codecs encode"),
        (nn.ReLU(), "torch.nn.modules.activation ReLU"),
    ],
)
def test_functions_are_refused_by_name(value: Any, named: str) -> None:
    content = program(pickle.dumps({"w": value}, 2))
    assert len(content) < 5000
    with (
        little_memory(),
        pytest.raises(CelmError, match=f"'{named}'"),
    ):
        parse_checkpoint(content, ".pt", LARGEST)


def test_supported_functions_are_called_only_as_in_state_dicts() -> None:
    for value in (
        Call(OrderedDict, [("a", 1)]),  # copies its argument on each call
        Call(torch.Size, [1] * 9),
        Call(torch._utils._rebuild_tensor_v2, torch.Size([2]), 0, (2,), (1,)),
    ):
        with pytest.raises(CelmError):
            parse_checkpoint(program(pickle.dumps({"w": value}, 2)), ".pt", LARGEST)


@pytest.mark.parametrize(
    ("code", "reason"),
    [
        (b"\x80\x05\x96" + struct.pack("<Q", 1 << 40) + b".", "invalid archive"),  # BYTEARRAY8
        (b"\x80\x02\x8b" + struct.pack("<i", 1 << 20) + bytes(1 << 20) + b".", "LONG4"),
        (b"\x80\x02}" + b"2" * 1000 + b".", "DUP"),
        (b"\x80\x02r" + struct.pack("<I", 1 << 31) + b".", "invalid archive"),  # memo of an empty stack
        (b"\x80\x02}r" + struct.pack("<I", (1 << 32) - 1) + b".", "no tensors"),
        (b"\x80\x02" + b"}" * torch_archive.MAX_PICKLE_BYTES + b".", "data.pkl is too large"),
        (b"\x80\x02(t(u.", "expected dict, got tuple"),
        (b"\x80\x02u.", "invalid archive"),
        (b"\x80\x02}R.", "stack underflow"),
        (b"\x80\x02}K\x01s.", "damaged|invalid archive"),
        (b"\x80\x02}X\x01\x00\x00\x00aQ.", "invalid archive"),
        (b"", "invalid archive"),
        (b"(" * 1000, "invalid archive"),
    ],
)
def test_invalid_programs_are_refused(code: bytes, reason: str) -> None:
    content = program(code)
    if len(content) < 10_000:
        with little_memory(), pytest.raises(CelmError, match=reason):
            parse_checkpoint(content, ".pt", LARGEST)
    else:
        with pytest.raises(CelmError, match=reason):
            parse_checkpoint(content, ".pt", LARGEST)


def test_opcodes_are_bounded() -> None:
    with pytest.raises(CelmError, match="too large"):
        parse_checkpoint(
            program(b"\x80\x02]" + b"]a" * (torch_archive.MAX_OPCODES // 2) + b"."), ".pt", LARGEST
        )


def test_a_nested_tuple_as_key_is_refused() -> None:
    nested = b"\x80\x02})" + b"q\x00h\x00\x86" * 200 + b"K\x01s."
    with pytest.raises(CelmError, match="dict key: tuple"):
        parse_checkpoint(program(nested), ".pt", LARGEST)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (b"cpuq\x06K\x06t", b"cpuq\x06J" + struct.pack("<i", 1 << 30) + b"t"),  # values of the storage
        (b"QK\x00K\x02K\x03\x86", b"QK\x00J" + struct.pack("<i", 1 << 30) + b"K\x03\x86"),  # a shape
        (b"QK\x00K\x02K\x03\x86", b"QK\x01K\x02K\x03\x86"),  # storage offset
        (b"QK\x00K\x02K\x03\x86", b"QJ" + struct.pack("<i", -1) + b"K\x02K\x03\x86"),
        (b"K\x03K\x01\x86", b"K\x04K\x01\x86"),  # strides
        (b"K\x03K\x01\x86", b"J" + struct.pack("<i", -3) + b"K\x01\x86"),
        (b"FloatStorage", b"DoubleStorage"),
        (b"QK\x00K\x02", b"K\x00K\x02"),  # a tuple in place of a storage
    ],
)
def test_tensors_that_exceed_their_storage_are_refused(old: bytes, new: bytes) -> None:
    with zipfile.ZipFile(io.BytesIO(saved({"w": torch.zeros(2, 3)}))) as archive:
        code = archive.read(PROGRAM)
    assert code.count(old) == 1
    with little_memory(), pytest.raises(CelmError, match=r"claim|shape|expected Storage"):
        parse_checkpoint(program(code.replace(old, new)), ".pt", LARGEST)


def test_a_storage_with_two_dtypes_is_refused() -> None:
    content = saved({"a": torch.ones(6), "b": torch.ones(6).int()})
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        code = archive.read(PROGRAM)
    key = b"X\x01\x00\x00\x001"
    assert code.count(key) == 1
    with pytest.raises(CelmError, match="storage '0'"):
        parse_checkpoint(rewritten(content, {PROGRAM: code.replace(key, key[:-1] + b"0")}), ".pt", LARGEST)


def test_a_header_of_megabytes_is_not_read() -> None:
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("w.npy", b"\x93NUMPY\x02\x00" + struct.pack("<I", 32 << 20) + b" " * (32 << 20))
    assert len(content.getvalue()) < 100_000
    with little_memory(), pytest.raises(CelmError, match="header of 33,554,432 bytes"):
        parse_checkpoint(content.getvalue(), ".npz", LARGEST)


def test_the_size_of_an_archive_is_checked_before_it_is_unpacked() -> None:
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("w.npy", b"\x93NUMPY\x02\x00" + struct.pack("<I", 32 << 20) + b" " * (32 << 20))
    with little_memory(), pytest.raises(CelmError, match="unpacks to"):
        parse_checkpoint(content.getvalue(), ".npz", 1 << 20)


@pytest.mark.filterwarnings("ignore:Stored array in format")
def test_arrays_of_every_version_and_order_are_read() -> None:
    arrays = {"a": np.asfortranarray(np.arange(6.0).reshape(2, 3)), "b": np.array(3, dtype=">i4")}
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w") as archive:
        for version in ((1, 0), (2, 0), (3, 0)):
            for name, array in arrays.items():
                entry = io.BytesIO()
                np.lib.format.write_array(entry, array, version=version)
                archive.writestr(f"{name}{version[0]}.npy", entry.getvalue())
    tensors = parse_checkpoint(content.getvalue(), ".npz", LARGEST)
    assert set(tensors) == {"a1", "b1", "a2", "b2", "a3", "b3"}
    for name, tensor in tensors.items():
        assert np.array_equal(tensor.numpy(), arrays[name[0]])


def test_a_name_with_and_without_suffix_is_a_duplicate() -> None:
    entry = io.BytesIO()
    np.lib.format.write_array(entry, np.ones(3))
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w") as archive:
        archive.writestr("w", entry.getvalue())
        archive.writestr("w.npy", entry.getvalue())
    with pytest.raises(CelmError, match="two entries"):
        parse_checkpoint(content.getvalue(), ".npz", LARGEST)


def test_entries_are_bounded_before_the_archive_is_opened() -> None:
    content = ENTRY_MAGIC * (MAX_ENTRIES + 1)
    with little_memory(), pytest.raises(CelmError, match="more than 100,000 entries"):
        parse_checkpoint(b"PK" + content, ".pt", LARGEST)
