"""Decoded images kept between runs, because decoding takes seconds and reading them back does not.

A cache may be lost, damaged or impossible to write at any time; then the images are decoded again.
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
    path = decoded_root() / f"{name}-{key(files, settings)}.safetensors"
    with suppress(CelmError):
        return read_tensors(path)[0]
    start = time.perf_counter()
    tensors = decode()
    if time.perf_counter() - start >= worth_keeping:
        with suppress(CelmError, OSError):
            path.parent.mkdir(parents=True, exist_ok=True)
            write_tensors(path, tensors, {"dataset": name})
    return tensors


def key(files: Sequence[Path], settings: Mapping[str, object]) -> str:
    """Changes when a file's place, size or time does, or a setting, or the decoder."""
    stamps = []
    for path in files:
        with explained(path, "read"):
            facts = path.stat()
        stamps.append([str(path.resolve()), facts.st_size, facts.st_mtime_ns])
    text = dump_json([VERSION, PIL.__version__, stamps, dict(sorted(settings.items()))])
    return hashlib.sha256(text.encode("utf-8", "surrogateescape")).hexdigest()[:32]
