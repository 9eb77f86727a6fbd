"""A cache of decoded images on disk: decoding takes seconds, reading the result does not.

If a cached file is missing, damaged or cannot be written, the images are decoded again. The same source files and
settings always map to the same cached file. If a source file changes, that file is replaced, so nothing outdated
remains.
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
from celm.base.files import dump_json, os_errors_as_celm_error, read_tensors, write_tensors
from celm.data.files.locate import cache_root

_DECODER_VERSION = 1
"""Increase it when the decoders give other results."""
_MIN_DECODE_SECONDS = 1.0
"""Results that took less time to decode are not cached."""


def load_or_compute(
    name: str,
    files: Sequence[Path],
    settings: Mapping[str, object],
    compute: Callable[[], dict[str, Tensor]],
    min_seconds: float = _MIN_DECODE_SECONDS,
) -> dict[str, Tensor]:
    """Return the result of `compute`, from the cache if the same files were decoded with the same settings."""
    source_paths = [str(path.resolve()) for path in files]
    key = _json_digest(source_paths, dict(sorted(settings.items())))
    path = decoded_cache_root() / f"{name}-{key}.safetensors"
    stamp = _compute_stamp(files)
    with suppress(CelmError):
        tensors, metadata = read_tensors(path)
        if metadata.get("stamp") == stamp:
            return tensors
    start = time.perf_counter()
    tensors = compute()
    if time.perf_counter() - start >= min_seconds:
        with suppress(CelmError, OSError):
            path.parent.mkdir(parents=True, exist_ok=True)
            write_tensors(path, tensors, {"dataset": name, "stamp": stamp})
    return tensors


def decoded_cache_root() -> Path:
    """Return the folder of cached files: `CELM_CACHE`, or a folder of the cache root."""
    cache_dir = os.environ.get("CELM_CACHE", "")
    return Path(cache_dir).expanduser() if cache_dir else cache_root() / "decoded"


def _compute_stamp(files: Sequence[Path]) -> str:
    """Return a digest that changes with the size or time of a file, or with the decoder."""
    file_stats = []
    for path in files:
        with os_errors_as_celm_error(path, "read"):
            stat = path.stat()
        file_stats.append([stat.st_size, stat.st_mtime_ns])
    return _json_digest(_DECODER_VERSION, PIL.__version__, file_stats)


def _json_digest(*parts: object) -> str:
    return hashlib.sha256(dump_json(list(parts)).encode("utf-8", "surrogateescape")).hexdigest()[:32]
