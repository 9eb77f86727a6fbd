"""Files that are never half written: write to a temporary file beside the target, fsync, rename.

Tensors are saved as safetensors; nothing is pickled.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import secrets
import stat
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from celm.base.errors import CelmError

if TYPE_CHECKING:
    import torch

PRIVATE_FILE, PRIVATE_FOLDER = 0o600, 0o700
_NO_DIRECTORY_FSYNC = (errno.EACCES, errno.EBADF, errno.EINVAL, errno.ENOSYS, errno.ENOTSUP, errno.EPERM)
"""Errors of systems that cannot open a folder, or cannot fsync one: Windows, and some network file systems."""


@contextmanager
def os_errors_as_celm_error(path: Path, action: str) -> Iterator[None]:
    """Turn an operating system error into a `CelmError` that names the action and `path`."""
    try:
        yield
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        hint = "free some space and try again" if error.errno in (errno.ENOSPC, errno.EDQUOT) else None
        raise CelmError(f"cannot {action} {path}: {reason}", hint) from error


def open_private(path: str, flags: int) -> int:
    """Open a file, as `open(..., opener=open_private)`, that only its owner may read, whatever the umask (POSIX)."""
    handle = os.open(path, flags, PRIVATE_FILE)
    if os.name == "posix" and stat.S_IMODE(os.fstat(handle).st_mode) != PRIVATE_FILE:
        with suppress(OSError):  # a file system without permissions
            os.fchmod(handle, PRIVATE_FILE)
    return handle


def make_private(path: Path) -> None:
    """Let only the owner of a file or folder read and write it. Do nothing on systems other than POSIX."""
    if os.name == "posix":
        mode = PRIVATE_FOLDER if path.is_dir() else PRIVATE_FILE
        if stat.S_IMODE(path.stat().st_mode) != mode:
            path.chmod(mode)


def write_bytes(path: Path, content: bytes, private: bool = False) -> None:
    """Replace the content of `path`, completely or not at all. Only the owner may read a `private` file."""
    with os_errors_as_celm_error(path, "write"):
        temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}.part")
        try:
            with open(temporary, "xb", opener=open_private if private else None) as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            temporary.replace(path)
        except BaseException:
            with suppress(OSError):
                temporary.unlink()
            raise
        fsync_directory(path.parent)


def remove_partial_files(*folders: Path) -> None:
    """Remove the files that `write_bytes` leaves if its process is killed. No other process may be writing there."""
    for folder in folders:
        for partial_file in folder.glob(".*.part"):
            with suppress(OSError):
                partial_file.unlink()


def fsync_directory(folder: Path) -> None:
    """Make a rename in `folder` durable, if the file system supports it. Any other failure is an error."""
    try:
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
    except OSError as error:
        if error.errno not in _NO_DIRECTORY_FSYNC:
            raise


def write_text(path: Path, content: str, private: bool = False) -> None:
    """Replace the content of `path` by UTF-8 text, completely or not at all."""
    write_bytes(path, content.encode(), private)


def read_text(path: Path) -> str:
    """Return the UTF-8 text in `path`."""
    with os_errors_as_celm_error(path, "read"):
        try:
            return path.read_text(encoding="utf-8")
        except UnicodeDecodeError as error:
            raise CelmError(f"cannot read {path}: it is not text") from error


def dump_json(value: Any, indent: int | None = None) -> str:
    """Return JSON with keys in the order given. NaN and infinity raise a ValueError: JSON has neither."""
    return json.dumps(value, allow_nan=False, ensure_ascii=False, indent=indent)


def tensor_digest(tensors: Mapping[str, torch.Tensor]) -> str:
    """Return the SHA-256 over the names, dtypes, shapes and bytes of the tensors."""
    import torch

    hasher = hashlib.sha256()
    for name in sorted(tensors):
        tensor = tensors[name].detach().cpu().contiguous()
        # The length comes first, so that a name cannot imitate a shorter name followed by its content.
        hasher.update(f"{len(name)}|{name}|{tensor.dtype}|{tuple(tensor.shape)}|".encode())
        hasher.update(tensor.reshape(-1).view(torch.uint8).numpy().data if tensor.numel() else b"")
    return hasher.hexdigest()


def _content_digest(tensors: Mapping[str, torch.Tensor], metadata: Mapping[str, Any]) -> str:
    """Return the SHA-256 over tensors and metadata."""
    return hashlib.sha256(f"{tensor_digest(tensors)}|{dump_json(metadata)}".encode()).hexdigest()


def write_tensors(
    path: Path, tensors: Mapping[str, torch.Tensor], metadata: Mapping[str, Any], private: bool = False
) -> None:
    """Save tensors and their metadata, a JSON document. Equal content gives equal bytes."""
    from safetensors.torch import save

    saved: dict[str, torch.Tensor] = {}
    pointers: set[int] = set()
    for name in sorted(tensors):
        tensor = tensors[name].detach().cpu().contiguous()
        # Tied tensors are saved once per name: the format has no aliases.
        saved[name] = tensor.clone() if tensor.untyped_storage().data_ptr() in pointers else tensor
        pointers.add(tensor.untyped_storage().data_ptr())
    # One metadata key only: the format does not fix the order of several.
    header = dump_json({"about": metadata, "digest": _content_digest(saved, metadata)})
    write_bytes(path, save(saved, metadata={"celm": header}), private)


def read_tensors(path: Path) -> tuple[dict[str, torch.Tensor], dict[str, Any]]:
    """Return tensors and metadata saved by `write_tensors`. Raise an error if they do not match their digest."""
    from safetensors import SafetensorError, safe_open

    with os_errors_as_celm_error(path, "read"):
        path.stat()
        try:
            with safe_open(path, framework="pt") as file:
                header = json.loads((file.metadata() or {})["celm"])
                metadata, expected = header["about"], header["digest"]
                tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - not a dict
            is_intact = isinstance(metadata, dict) and _content_digest(tensors, metadata) == expected
        except (SafetensorError, ValueError, KeyError, TypeError, RuntimeError) as error:
            raise CelmError(f"cannot read {path}: damaged file ({error})") from error
    if not is_intact:
        raise CelmError(f"cannot read {path}: damaged file (its content does not match its digest)")
    # Copies have the alignment of new tensors: products of tensors aligned otherwise may round differently.
    return {name: tensor.clone() for name, tensor in tensors.items()}, metadata
