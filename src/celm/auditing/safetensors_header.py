"""Check the header of an untrusted safetensors file before the library parses it.

The header is JSON: an object of tensors by name, each with its type, shape and place in the file. The library keeps the
last of two equal names, and its memory grows with the number of entries, which a small file may have by the million.
"""

from __future__ import annotations

import json
from typing import Any

from celm.base.errors import CelmError
from celm.base.text import quote

_LENGTH_BYTES = 8
_HEADER_OVERHEAD = 1 << 20
"""Bytes of a header beside its tensors: metadata and padding."""
_ENTRY_BYTES = 1 << 10
"""Bytes of a header for each tensor: the name, the type, the shape and the place."""
_METADATA = "__metadata__"


def check_header(content: bytes, max_tensors: int) -> None:
    """Refuse a header that is too long, has more than `max_tensors` tensors, or has a key twice."""
    if len(content) < _LENGTH_BYTES:
        raise CelmError("invalid safetensors file: it is shorter than the length of its header")
    length = int.from_bytes(content[:_LENGTH_BYTES], "little")
    if length > len(content) - _LENGTH_BYTES:
        raise CelmError(f"invalid safetensors file: header of {length:,} bytes in {len(content):,} bytes")
    max_length = _HEADER_OVERHEAD + _ENTRY_BYTES * max_tensors
    if length > max_length:
        raise CelmError(
            f"invalid safetensors file: header of {length:,} bytes, at most {max_length:,} for this model"
        )
    try:
        header = json.loads(content[_LENGTH_BYTES : _LENGTH_BYTES + length], object_pairs_hook=_unique_keys)
    except (ValueError, RecursionError) as error:
        raise CelmError("invalid safetensors file: its header is not JSON") from error
    if not isinstance(header, dict):
        raise CelmError("invalid safetensors file: its header is not a JSON object")
    num_tensors = len(header) - (_METADATA in header)
    if num_tensors > max_tensors:
        raise CelmError(
            f"invalid safetensors file: {num_tensors:,} tensors, at most {max_tensors:,} for this model"
        )


def _unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    unique: dict[str, Any] = {}
    for key, value in pairs:
        if key in unique:
            raise CelmError(f"invalid safetensors file: duplicate key {quote(key)} in its header")
        unique[key] = value
    return unique
