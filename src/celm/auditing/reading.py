"""Untrusted files as tensors: one snapshot in memory, which is what is hashed, checked and audited.

A memory map of somebody else's file would not do: the owner may shorten it while it is read, which ends the process
with a bus error, or change it between the hash and the probe. So a file is read once, one client at a time, and all
that is said about it is said of those bytes.

    .safetensors                the format has no code; its header is checked against the size by the library
    .pt .pth .bin .ckpt         zip archives of PyTorch, uncompressed, by torch.load(weights_only=True)
    .npz                        arrays by name or in order (as Flower apps save them), allow_pickle=False

Whatever is wrong with a file is a `CelmError` that says so in one line.
"""

from __future__ import annotations

import errno
import hashlib
import io
import os
import re
import stat
import warnings
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
    members(content, largest, stored=True)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            found = torch.load(io.BytesIO(content), map_location="cpu", weights_only=True)
    except Exception as error:  # hostile pickles fail in any way they like; none of their code has run
        first = re.split(r"\. |\n|: \(", str(error))[0]
        raise CelmError(
            f"is damaged or would run code: {type(error).__name__}: {visible(first[:160])}",
            "save the state dict alone, best as safetensors",
        ) from error
    return unwrapped(found)


def unwrapped(found: Any) -> Mapping[Any, Any]:
    """The state dict itself, where a training loop saved it beside other things."""
    if not isinstance(found, Mapping):
        raise CelmError(f"expected named tensors, got {type(found).__name__[:40]}")
    inner = [found[key] for key in WRAPPERS if isinstance(found.get(key), Mapping)]
    return inner[0] if len(inner) == 1 else found


def parse_arrays(content: bytes, largest: int) -> dict[str, Tensor]:
    tensors: dict[str, Tensor] = {}
    try:
        names = members(content, largest, stored=False)
        with np.load(io.BytesIO(content), allow_pickle=False) as archive:
            for name in names:
                tensors[name.removesuffix(".npy")] = array_tensor(archive[name], name)
    except CelmError:
        raise
    except Exception as error:  # zip, deflate and numpy's header parser each have their own
        raise CelmError(f"is not a whole npz file of plain arrays: {said_by(error)}") from error
    return tensors


def members(content: bytes, largest: int, stored: bool) -> list[str]:
    """The names in a zip archive that unpacks to no more than `largest` bytes, each of them once."""
    try:
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            entries = archive.infolist()
            # A claim of an array's header is checked against what the archive says it holds.
            if not stored:
                for entry in entries:
                    check_array(archive, entry)
    except CelmError:
        raise
    except Exception as error:  # zip, deflate and numpy's header parser each have their own
        raise CelmError(f"is not a whole archive: {said_by(error)}") from error
    names = [entry.filename for entry in entries]
    if len(set(names)) < len(names):
        raise CelmError("holds two entries of one name")
    if sum(entry.file_size for entry in entries) > largest:
        raise CelmError("unpacks to far more than the model needs")
    if stored and any(entry.compress_type != zipfile.ZIP_STORED for entry in entries):
        raise CelmError("is a compressed archive, which PyTorch does not write")
    return names


def check_array(archive: zipfile.ZipFile, entry: zipfile.ZipInfo) -> None:
    """Refuse an array whose header claims more than the archive holds, before memory is taken for it."""
    with archive.open(entry) as file:
        major, _ = np.lib.format.read_magic(file)
        read = np.lib.format.read_array_header_1_0 if major == 1 else np.lib.format.read_array_header_2_0
        shape, _, dtype = read(file)
        if dtype.hasobject:
            raise CelmError(f"tensor {shown(entry.filename)} holds Python objects, which are never opened")
        count = 1
        for side in shape:
            count *= int(side)
        if count < 0 or count * dtype.itemsize > entry.file_size:
            raise CelmError(f"tensor {shown(entry.filename)} claims more values than the file holds")


def array_tensor(array: Any, name: str) -> Tensor:
    if not isinstance(array, np.ndarray) or array.dtype.kind not in "fiub":
        raise CelmError(f"tensor {shown(name)}: expected numbers, got {getattr(array, 'dtype', 'bytes')}")
    native = array.astype(array.dtype.newbyteorder("="), copy=False)
    return torch.from_numpy(np.ascontiguousarray(native).reshape(array.shape))


def named_tensors(found: Mapping[Any, Any]) -> dict[str, Tensor]:
    """Checked to be tensors by name; the prefix that DataParallel puts before every name is taken off."""
    for name, value in found.items():
        if not isinstance(name, str):
            raise CelmError(f"a tensor has a name {shown(name)}")
        if not isinstance(value, Tensor):
            raise CelmError(f"{shown(name)}: expected a tensor, got {type(value).__name__[:40]}")
    if not found:
        raise CelmError("holds no tensors")
    prefix = "module."
    cut = len(prefix) if all(name.startswith(prefix) for name in found) else 0
    return {name[cut:]: value.detach() for name, value in found.items()}


def said_by(error: BaseException) -> str:
    return visible(one_line(error, 160))


def visible(text: str) -> str:
    """Text that can be printed and saved: what a file made a library say may hold anything."""
    return "".join(char if char.isprintable() else ascii(char)[1:-1] for char in text)
