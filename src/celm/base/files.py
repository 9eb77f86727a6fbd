"""Files that are never half written: write beside, fsync, rename. Tensors in safetensors, no pickle."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import secrets
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from celm.base.errors import CelmError

if TYPE_CHECKING:
    import torch


@contextmanager
def explained(path: Path, doing: str) -> Iterator[None]:
    """Turn an operating system error on `path` into one line that says what and where."""
    try:
        yield
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        hint = "free some space and try again" if error.errno in (errno.ENOSPC, errno.EDQUOT) else None
        raise CelmError(f"cannot {doing} {path}: {reason}", hint) from error


def write_bytes(path: Path, content: bytes) -> None:
    """Replace `path` by `content`, wholly or not at all."""
    with explained(path, "write"):
        beside = path.with_name(f".{path.name}.{secrets.token_hex(4)}.part")
        try:
            with beside.open("xb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            beside.replace(path)
        except BaseException:
            with suppress(OSError):
                beside.unlink()
            raise
        sync_folder(path.parent)


def sync_folder(folder: Path) -> None:
    """Make a rename in `folder` durable; a file system that cannot is left as it is."""
    with suppress(OSError):
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def write_text(path: Path, content: str) -> None:
    write_bytes(path, content.encode())


def read_text(path: Path) -> str:
    with explained(path, "read"):
        try:
            return path.read_text(encoding="utf-8")
        except UnicodeDecodeError as error:
            raise CelmError(f"cannot read {path}: it is not text") from error


def dump_json(value: Any, indent: int | None = None) -> str:
    """JSON without NaN or infinity, keys in the order given."""
    return json.dumps(value, allow_nan=False, ensure_ascii=False, indent=indent)


def digest(tensors: Mapping[str, torch.Tensor]) -> str:
    """SHA-256 over names, kinds, shapes and bytes."""
    import torch

    total = hashlib.sha256()
    for name in sorted(tensors):
        tensor = tensors[name].detach().cpu().contiguous()
        # The length of the name goes first, so that no name can pass for the end of another and some content.
        total.update(f"{len(name)}|{name}|{tensor.dtype}|{tuple(tensor.shape)}|".encode())
        total.update(tensor.reshape(-1).view(torch.uint8).numpy().data if tensor.numel() else b"")
    return total.hexdigest()


def seal(tensors: Mapping[str, torch.Tensor], about: Mapping[str, Any]) -> str:
    """SHA-256 over the tensors and what is said about them."""
    return hashlib.sha256(f"{digest(tensors)}|{dump_json(about)}".encode()).hexdigest()


def write_tensors(path: Path, tensors: Mapping[str, torch.Tensor], about: Mapping[str, Any]) -> None:
    """Save tensors and a JSON document about them; equal content gives equal bytes."""
    from safetensors.torch import save

    plain: dict[str, torch.Tensor] = {}
    memory: set[int] = set()
    for name in sorted(tensors):
        tensor = tensors[name].detach().cpu().contiguous()
        # Tied tensors are saved under each of their names; the format has no aliases.
        plain[name] = tensor.clone() if tensor.untyped_storage().data_ptr() in memory else tensor
        memory.add(tensor.untyped_storage().data_ptr())
    # One metadata key only: the order of several is not fixed by the format.
    note = dump_json({"about": about, "digest": seal(plain, about)})
    write_bytes(path, save(plain, metadata={"celm": note}))


def read_tensors(path: Path) -> tuple[dict[str, torch.Tensor], dict[str, Any]]:
    """Load what `write_tensors` saved; a damaged file is an error, found by its digest."""
    from safetensors import SafetensorError, safe_open

    with explained(path, "read"):
        path.stat()
        try:
            with safe_open(path, framework="pt") as file:
                note = json.loads((file.metadata() or {})["celm"])
                about, expected = note["about"], note["digest"]
                tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - not a dict
            whole = isinstance(about, dict) and seal(tensors, about) == expected
        except (SafetensorError, ValueError, KeyError, TypeError, RuntimeError) as error:
            raise CelmError(f"cannot read {path}: damaged file ({error})") from error
    if not whole:
        raise CelmError(f"cannot read {path}: damaged file (its content does not match its digest)")
    # Copies, aligned as new tensors are: in products of others sums may round otherwise.
    return {name: tensor.clone() for name, tensor in tensors.items()}, about
