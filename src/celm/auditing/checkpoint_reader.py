"""Tensors from untrusted files. One copy of a file in memory is hashed, checked and audited.

A memory map of another user's file is not safe: the owner may shorten the file, which ends the process with a bus
error, or change it between hash and probe. So a file is read once, one client at a time, and every statement about it
is about those bytes.

    .safetensors                contains no code; the header is checked first (celm.auditing.safetensors_header)
    .pt .pth .bin .ckpt         uncompressed zip archives of PyTorch, without unpickling (celm.auditing.torch_archive)
    .npz                        arrays by name or in order (as Flower apps save them), allow_pickle=False

Every fault of a file is a `CelmError` of one line, without the path: callers put the client or the path before it.
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

from celm.auditing.safetensors_header import check_header
from celm.auditing.torch_archive import read_state_dict
from celm.base.digests import bytes_sha256
from celm.base.errors import CelmError
from celm.base.text import format_exception, quote

_PYTORCH_SUFFIXES = (".pt", ".pth", ".bin", ".ckpt")
CHECKPOINT_SUFFIXES = (".safetensors", ".npz", *_PYTORCH_SUFFIXES)
_STATE_DICT_KEYS = ("state_dict", "model_state_dict", "model")
"""Keys of the model in the checkpoints of training loops, beside an optimiser and other values."""
_FILE_TYPES = {
    stat.S_IFIFO: "a pipe",
    stat.S_IFSOCK: "a socket",
    stat.S_IFDIR: "a folder",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
}
MAX_OVERHEAD = 64 << 20
"""Largest number of bytes of a file beside its tensors."""
MAX_OTHER_TENSORS = 1000
"""Largest number of tensors of a file beside twice those of the model. A file with more is refused unread."""
ENTRY_MAGIC = b"PK\x01\x02"
"""Signature of an entry in the central directory of a zip archive."""
MAX_ENTRIES = 100_000
"""Largest number of entries of an archive. An open archive takes ten times the bytes of its directory."""
_MAX_ARRAY_HEADER = 10_000
"""Largest header of an array in bytes. numpy has the same bound, but reads the header first."""
_MAX_ERROR_LENGTH = 160
"""Largest number of characters of a library's error message, which may repeat any bytes of a file."""


@dataclass(frozen=True)
class Snapshot:
    """The bytes of a file at one moment, and their SHA-256."""

    content: bytes
    sha256: str


def max_file_bytes(reference: Mapping[str, Tensor]) -> int:
    """Return the largest size of a file with this model: float64, and two moments of an optimiser beside it."""
    return MAX_OVERHEAD + 24 * sum(tensor.numel() for tensor in reference.values())


def max_file_tensors(reference: Mapping[str, Tensor]) -> int:
    """Return the largest number of tensors of a file with this model."""
    return MAX_OTHER_TENSORS + 2 * len(reference)


def take_snapshot(path: Path, max_bytes: int) -> Snapshot:
    """Read a regular file of at most `max_bytes`."""
    with _open_stable(path) as (file, size):
        if size > max_bytes:
            raise CelmError(f"file is too large: {size:,} bytes, at most {max_bytes:,}")
        content = file.read(size + 1)  # one more byte shows whether the file grows
        if len(content) != size:
            raise CelmError("file changed while it was read")
    return Snapshot(content, bytes_sha256(content))


def file_sha256(path: Path) -> str:
    """Return the SHA-256 of a regular file of any size."""
    with _open_stable(path) as (file, _):
        return hashlib.file_digest(file, "sha256").hexdigest()


@contextmanager
def _open_stable(path: Path) -> Iterator[tuple[BufferedReader, int]]:
    """Open a regular file, without following a link or waiting for a pipe; also return its size.

    A change of the file while it is open is an error.
    """
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
        is_link = error.errno in (errno.ELOOP, errno.EMLINK)
        reason = "symbolic link" if is_link else (error.strerror or str(error)).lower()
        raise CelmError(f"cannot read the file: {reason}") from error
    if (before.st_size, before.st_mtime_ns) != (after.st_size, after.st_mtime_ns):
        raise CelmError("file changed while it was read")


def check_regular(mode: int) -> None:
    """Refuse a folder, a pipe, a socket or a device, by the mode of the file."""
    if not stat.S_ISREG(mode):
        raise CelmError(f"not a regular file: {_FILE_TYPES.get(stat.S_IFMT(mode), 'unknown type')}")


def parse_checkpoint(
    content: bytes, suffix: str, max_bytes: int, max_tensors: int = MAX_OTHER_TENSORS
) -> dict[str, Tensor]:
    """Return the tensors of a checkpoint by name. The suffix determines the format.

    `max_tensors` bounds safetensors and npz files. Archives of PyTorch may have other values beside the model, so
    MAX_ENTRIES bounds them.
    """
    suffix = suffix.lower()
    if not content:
        raise CelmError("file is empty")
    if suffix == ".safetensors":
        tensors: Mapping[Any, Any] = _parse_safetensors(content, max_tensors)
    elif suffix == ".npz":
        tensors = _parse_npz(content, max_bytes, max_tensors)
    elif suffix in _PYTORCH_SUFFIXES:
        tensors = _parse_pytorch(content, max_bytes)
    else:
        raise CelmError(
            f"unsupported file suffix: {suffix or 'none'}", f"use one of {', '.join(CHECKPOINT_SUFFIXES)}"
        )
    return check_named_tensors(tensors)


def _parse_safetensors(content: bytes, max_tensors: int) -> dict[str, Tensor]:
    check_header(content, max_tensors)
    try:
        return dict(sorted(load_safetensors(content).items()))  # the library returns them in any order
    except (SafetensorError, ValueError, KeyError, TypeError, RuntimeError, AssertionError) as error:
        raise CelmError(f"invalid safetensors file: {format_exception(error, _MAX_ERROR_LENGTH)}") from error


def _parse_pytorch(content: bytes, max_bytes: int) -> Mapping[Any, Any]:
    if not content.startswith(b"PK"):
        raise CelmError(
            "not a PyTorch archive", "save the state dict with torch.save; a bare pickle is never opened"
        )
    with _open_archive(content, max_bytes) as archive:
        if any(entry.compress_type != zipfile.ZIP_STORED for entry in archive.infolist()):
            raise CelmError(
                "compressed archive", "save the state dict with torch.save, which does not compress"
            )
        return _find_state_dict(read_state_dict(archive))


def _find_state_dict(saved: Any) -> Mapping[Any, Any]:
    """Return the state dict, also if a training loop saved it beside other values."""
    if not isinstance(saved, Mapping):
        raise CelmError(f"expected named tensors, got {type(saved).__name__[:40]}")
    state_dicts = [saved[key] for key in _STATE_DICT_KEYS if isinstance(saved.get(key), Mapping)]
    return state_dicts[0] if len(state_dicts) == 1 else saved


def _parse_npz(content: bytes, max_bytes: int, max_tensors: int) -> dict[str, Tensor]:
    with _open_archive(content, max_bytes) as archive:
        if (count := len(archive.infolist())) > max_tensors:
            raise CelmError(f"archive is too large: {count:,} arrays, at most {max_tensors:,} for this model")
        return {
            entry.filename.removesuffix(".npy"): _read_array(archive, entry) for entry in archive.infolist()
        }


@contextmanager
def _open_archive(content: bytes, max_bytes: int) -> Iterator[zipfile.ZipFile]:
    """Open a zip archive with unique names that unpacks to at most `max_bytes`."""
    if content.count(ENTRY_MAGIC) > MAX_ENTRIES:
        raise CelmError(f"archive is too large: more than {MAX_ENTRIES:,} entries")
    try:
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            entries = archive.infolist()
            if len({entry.filename.removesuffix(".npy") for entry in entries}) < len(entries):
                raise CelmError("invalid archive: two entries have the same name")
            if (size := sum(entry.file_size for entry in entries)) > max_bytes:
                raise CelmError(f"archive is too large: unpacks to {size:,} bytes, at most {max_bytes:,}")
            yield archive
    except CelmError:
        raise
    except Exception as error:  # zipfile, zlib, numpy and pickletools have many error types
        raise CelmError(f"invalid archive: {format_exception(error, _MAX_ERROR_LENGTH)}") from error


def _read_array(archive: zipfile.ZipFile, entry: zipfile.ZipInfo) -> Tensor:
    """Read an array. Its header is checked first, because numpy allocates the memory that a header claims."""
    name = quote(entry.filename)
    with archive.open(entry) as file:
        magic = file.read(np.lib.format.MAGIC_LEN)
        is_version_1 = np.lib.format.read_magic(io.BytesIO(magic)) == (1, 0)
        length = file.read(2 if is_version_1 else 4)
        size = int.from_bytes(length, "little")
        if size > _MAX_ARRAY_HEADER:
            raise CelmError(f"tensor {name}: header of {size:,} bytes, at most {_MAX_ARRAY_HEADER:,}")
        header = length + file.read(size)
        read_header = (
            np.lib.format.read_array_header_1_0 if is_version_1 else np.lib.format.read_array_header_2_0
        )
        shape, _, dtype = read_header(io.BytesIO(header))
        if dtype.hasobject:
            raise CelmError(f"tensor {name}: Python objects are never opened")
        if min(shape, default=0) < 0 or math.prod(shape) * dtype.itemsize > entry.file_size:
            raise CelmError(f"tensor {name}: its header claims more values than the file has")
    with archive.open(entry) as file:
        return _to_tensor(np.lib.format.read_array(file, allow_pickle=False), entry.filename)


def _to_tensor(array: Any, name: str) -> Tensor:
    if not isinstance(array, np.ndarray) or array.dtype.kind not in "fiub":
        actual = str(getattr(array, "dtype", "bytes"))[:40]
        raise CelmError(f"tensor {quote(name)}: expected numbers, got {actual}")
    native = array.astype(array.dtype.newbyteorder("="), copy=False)
    return torch.from_numpy(np.ascontiguousarray(native).reshape(array.shape))


def check_named_tensors(tensors: Mapping[Any, Any]) -> dict[str, Tensor]:
    """Return the tensors, after checking that all names are text and all values are tensors."""
    for name, value in tensors.items():
        if not isinstance(name, str):
            raise CelmError(f"tensor {quote(name)}: expected text as its name")
        if not isinstance(value, Tensor):
            raise CelmError(f"{quote(name)}: expected a tensor, got {type(value).__name__[:40]}")
    if not tensors:
        raise CelmError("no tensors in the checkpoint")
    return {name: value.detach() for name, value in tensors.items()}
