"""Untrusted files as tensors: one snapshot in memory, which is what is hashed, checked and audited.

A memory map of somebody else's file would not do: the owner may shorten it while it is read, which ends the process
with a bus error, or change it between the hash and the probe. So a file is read once, one client at a time, and all
that is said about it is said of those bytes.

    .safetensors                the format has no code; its header is checked against the size by the library
    .pt .pth .bin .ckpt         zip archives of PyTorch, uncompressed, without unpickling (celm.auditing.pytorch)
    .npz                        arrays by name or in order (as Flower apps save them), allow_pickle=False

Whatever is wrong with a file is a `CelmError` that says so in one line.
"""

from __future__ import annotations

import errno
import hashlib
import io
import math
import os
import stat
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from io import BufferedReader
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.torch import load as load_safetensors
from torch import Tensor

from celm.auditing.pytorch import read_state_dict
from celm.base.errors import CelmError
from celm.models.factory import one_line
from celm.models.state import shown

PYTORCH = (".pt", ".pth", ".bin", ".ckpt")
SUFFIXES = (".safetensors", ".npz", *PYTORCH)
WRAPPERS = ("state_dict", "model_state_dict", "model")
"""Under which training loops keep the model, beside an optimiser and the like."""
KINDS = {
    stat.S_IFIFO: "a pipe",
    stat.S_IFSOCK: "a socket",
    stat.S_IFDIR: "a folder",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
}
HEADERS = 64 << 20
"""Bytes that a file may have beyond its tensors."""
ENTRY = b"PK\x01\x02"
"""Before each entry in the list of an archive."""
ENTRIES = 100_000
"""Of an archive: each takes ten times its bytes when it is opened."""
LONGEST_HEADER = 10_000
"""Bytes of an array's header; numpy has the same bound, but reads it first."""


@dataclass(frozen=True)
class Snapshot:
    """The bytes of a file at one moment."""

    content: bytes
    sha256: str


def largest_file(reference: Mapping[str, Tensor]) -> int:
    """Bytes that a file of this model may have: float64, with an optimiser's two moments beside it."""
    return HEADERS + 24 * sum(tensor.numel() for tensor in reference.values())


def take_snapshot(path: Path, largest: int) -> Snapshot:
    """Read a regular file of at most `largest` bytes."""
    with unchanging(path) as (file, size):
        if size > largest:
            raise CelmError(f"has {size:,} bytes, far more than the model needs")
        content = file.read(size + 1)  # one more than it has, to see whether it grows
        if len(content) != size:
            raise CelmError("changed while it was read")
    return Snapshot(content, hashlib.sha256(content).hexdigest())


def fingerprint(path: Path) -> str:
    """SHA-256 of a regular file, however large."""
    with unchanging(path) as (file, _):
        return hashlib.file_digest(file, "sha256").hexdigest()


@contextmanager
def unchanging(path: Path) -> Iterator[tuple[BufferedReader, int]]:
    """A regular file and its size; links are not followed, pipes not waited for, a change meanwhile is an error."""
    flags = (
        os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)
    )
    try:
        with os.fdopen(os.open(path, flags), "rb") as file:
            before = os.fstat(file.fileno())
            check_regular(before.st_mode)
            yield file, before.st_size
            after = os.fstat(file.fileno())
    except OSError as error:
        link = error.errno in (errno.ELOOP, errno.EMLINK)
        reason = "is a symbolic link" if link else (error.strerror or str(error)).lower()
        raise CelmError(f"cannot be read: {reason}") from error
    if (before.st_size, before.st_mtime_ns) != (after.st_size, after.st_mtime_ns):
        raise CelmError("changed while it was read")


def check_regular(mode: int) -> None:
    if not stat.S_ISREG(mode):
        raise CelmError(f"is not a regular file but {KINDS.get(stat.S_IFMT(mode), 'something else')}")


def parse(content: bytes, suffix: str, largest: int) -> dict[str, Tensor]:
    """The tensors in a checkpoint of this suffix, by name."""
    suffix = suffix.lower()
    if not content:
        raise CelmError("is empty")
    if suffix == ".safetensors":
        tensors: Mapping[Any, Any] = parse_safetensors(content)
    elif suffix == ".npz":
        tensors = parse_arrays(content, largest)
    elif suffix in PYTORCH:
        tensors = parse_pytorch(content, largest)
    else:
        raise CelmError(
            f"is of a kind that is not read ({suffix or 'no suffix'})", f"one of {', '.join(SUFFIXES)}"
        )
    return named_tensors(tensors)


def parse_safetensors(content: bytes) -> dict[str, Tensor]:
    try:
        return dict(sorted(load_safetensors(content).items()))  # the library has them in any order
    except (SafetensorError, ValueError, KeyError, TypeError, RuntimeError, AssertionError) as error:
        raise CelmError(f"is not a whole safetensors file: {said_by(error)}") from error


def parse_pytorch(content: bytes, largest: int) -> Mapping[Any, Any]:
    if not content.startswith(b"PK"):
        raise CelmError(
            "is not a PyTorch archive",
            "a bare pickle is never opened; save it by torch.save",
        )
    with opened(content, largest) as archive:
        if any(entry.compress_type != zipfile.ZIP_STORED for entry in archive.infolist()):
            raise CelmError("is a compressed archive, which PyTorch does not write")
        return unwrapped(read_state_dict(archive))


def unwrapped(found: Any) -> Mapping[Any, Any]:
    """The state dict itself, where a training loop saved it beside other things."""
    if not isinstance(found, Mapping):
        raise CelmError(f"expected named tensors, got {type(found).__name__[:40]}")
    inner = [found[key] for key in WRAPPERS if isinstance(found.get(key), Mapping)]
    return inner[0] if len(inner) == 1 else found


def parse_arrays(content: bytes, largest: int) -> dict[str, Tensor]:
    with opened(content, largest) as archive:
        return {
            entry.filename.removesuffix(".npy"): read_array(archive, entry) for entry in archive.infolist()
        }


@contextmanager
def opened(content: bytes, largest: int) -> Iterator[zipfile.ZipFile]:
    """A zip archive that unpacks to no more than `largest` bytes, each name in it once; errors are of one line."""
    if content.count(ENTRY) > ENTRIES:
        raise CelmError(f"has more than {ENTRIES:,} entries")
    try:
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            entries = archive.infolist()
            if len({entry.filename.removesuffix(".npy") for entry in entries}) < len(entries):
                raise CelmError("holds two entries of one name")
            if sum(entry.file_size for entry in entries) > largest:
                raise CelmError("unpacks to far more than the model needs")
            yield archive
    except CelmError:
        raise
    except Exception as error:  # zip, deflate, numpy and programs each have their own
        raise CelmError(f"is not a whole archive: {said_by(error)}") from error


def read_array(archive: zipfile.ZipFile, entry: zipfile.ZipInfo) -> Tensor:
    """An array whose header claims no more than the archive holds: memory is taken for what is claimed."""
    with archive.open(entry) as file:
        magic = file.read(np.lib.format.MAGIC_LEN)
        old = np.lib.format.read_magic(io.BytesIO(magic)) == (1, 0)
        length = file.read(2 if old else 4)
        size = int.from_bytes(length, "little")
        if size > LONGEST_HEADER:
            raise CelmError(f"tensor {shown(entry.filename)} has a header of {size:,} bytes")
        header = length + file.read(size)
        read = np.lib.format.read_array_header_1_0 if old else np.lib.format.read_array_header_2_0
        shape, _, dtype = read(io.BytesIO(header))
        if dtype.hasobject:
            raise CelmError(f"tensor {shown(entry.filename)} holds Python objects, which are never opened")
        if min(shape, default=0) < 0 or math.prod(shape) * dtype.itemsize > entry.file_size:
            raise CelmError(f"tensor {shown(entry.filename)} claims more values than the file holds")
    with archive.open(entry) as file:
        return array_tensor(np.lib.format.read_array(file, allow_pickle=False), entry.filename)


def array_tensor(array: Any, name: str) -> Tensor:
    if not isinstance(array, np.ndarray) or array.dtype.kind not in "fiub":
        raise CelmError(f"tensor {shown(name)}: expected numbers, got {getattr(array, 'dtype', 'bytes')}")
    native = array.astype(array.dtype.newbyteorder("="), copy=False)
    return torch.from_numpy(np.ascontiguousarray(native).reshape(array.shape))


def named_tensors(found: Mapping[Any, Any]) -> dict[str, Tensor]:
    """Checked to be tensors by name."""
    for name, value in found.items():
        if not isinstance(name, str):
            raise CelmError(f"a tensor has a name {shown(name)}")
        if not isinstance(value, Tensor):
            raise CelmError(f"{shown(name)}: expected a tensor, got {type(value).__name__[:40]}")
    if not found:
        raise CelmError("holds no tensors")
    return {name: value.detach() for name, value in found.items()}


def said_by(error: BaseException) -> str:
    return visible(one_line(error, 160))


def visible(text: str) -> str:
    """Text that can be printed and saved: what a file made a library say may hold anything."""
    return "".join(char if char.isprintable() else ascii(char)[1:-1] for char in text)
