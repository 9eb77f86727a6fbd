"""Decoded images kept between runs, because decoding takes seconds and reading them back does not.

A cache may be lost, damaged or impossible to write at any time; then the images are decoded again. There is one
file for the same files decoded the same way: when they change, it is written anew and nothing old stays behind.
"""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

import PIL
from torch import Tensor

from celm.base.errors import CelmError
from celm.base.files import dump_json, explained, read_tensors, write_tensors
from celm.data.files.locate import cache_root

VERSION = 1
"""Raise it when decoding changes what comes out."""
WORTH_KEEPING = 1.0
"""Seconds of decoding from which the result is kept."""


def decoded_root() -> Path:
    named = os.environ.get("CELM_CACHE", "")
    return Path(named).expanduser() if named else cache_root() / "decoded"


def cached(
    name: str,
    files: Sequence[Path],
    settings: Mapping[str, object],
    decode: Callable[[], dict[str, Tensor]],
    worth_keeping: float = WORTH_KEEPING,
) -> dict[str, Tensor]:
    """What `decode` returns, from the cache if the same files were decoded the same way before."""
    path = decoded_root() / f"{name}-{digest(places(files), dict(sorted(settings.items())))}.safetensors"
    stamp = stamp_of(files)
    with suppress(CelmError):
        tensors, about = read_tensors(path)
        if about.get("stamp") == stamp:
            return tensors
    start = time.perf_counter()
    tensors = decode()
    if time.perf_counter() - start >= worth_keeping:
        with suppress(CelmError, OSError):
            path.parent.mkdir(parents=True, exist_ok=True)
            write_tensors(path, tensors, {"dataset": name, "stamp": stamp})
    return tensors


def places(files: Sequence[Path]) -> list[str]:
    return [str(path.resolve()) for path in files]


def stamp_of(files: Sequence[Path]) -> str:
    """Changes when a file's size or time does, or the decoder."""
    facts = []
    for path in files:
        with explained(path, "read"):
            found = path.stat()
        facts.append([found.st_size, found.st_mtime_ns])
    return digest(VERSION, PIL.__version__, facts)


def digest(*parts: object) -> str:
    return hashlib.sha256(dump_json(list(parts)).encode("utf-8", "surrogateescape")).hexdigest()[:32]
