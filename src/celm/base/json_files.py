"""JSON files and JSON lines. Errors name file and line; an appended line is complete or absent."""

from __future__ import annotations

import json
import os
from contextlib import suppress
from pathlib import Path
from typing import Any

from celm.base.errors import CelmError
from celm.base.files import dump_json, open_private, os_errors_as_celm_error, read_text


def append_jsonl(path: Path, value: dict[str, Any], durable: bool = True, private: bool = False) -> None:
    """Append one JSON line. If writing fails, the file keeps its old size. `durable` adds an fsync.

    Only the owner may read a `private` file.
    """
    remaining = dump_json(value).encode() + b"\n"
    # Unbuffered: closing a buffered file would write the rest of an incomplete line again.
    opener = open_private if private else None
    with (
        os_errors_as_celm_error(path, "write"),
        open(path, "ab", buffering=0, opener=opener) as file,
    ):
        size_before = file.tell()
        try:
            while remaining:
                remaining = remaining[file.write(remaining) :]
            if durable:
                os.fsync(file.fileno())
        except OSError:
            with suppress(OSError):
                os.truncate(path, size_before)
            raise


def read_jsonl(path: Path) -> list[dict[str, Any]]:
    """Return the objects in a JSON lines file without an incomplete last line; an empty list if there is no file."""
    if not path.exists():
        return []
    with os_errors_as_celm_error(path, "read"):
        content = path.read_bytes()
    return parse_jsonl(content, path)


def parse_jsonl(content: bytes, path: Path) -> list[dict[str, Any]]:
    """Return the objects in `content`, which was read from the JSON lines file `path`."""
    # As bytes: an incomplete line may end within a character, and only "\n" ends a line.
    complete, _, _incomplete = content.rpartition(b"\n")
    lines = []
    for line_number, line in enumerate(complete.split(b"\n") if complete else [], start=1):
        try:
            value = json.loads(line)
        except (ValueError, RecursionError) as error:  # not JSON, not UTF-8, or nested too deeply
            raise CelmError(f"{path} is damaged: line {line_number} is not JSON") from error
        if not isinstance(value, dict):
            raise CelmError(f"{path} is damaged: line {line_number} is not an object")
        lines.append(value)
    return lines


def read_json(path: Path) -> dict[str, Any]:
    """Return the object in a JSON file."""
    try:
        value = json.loads(read_text(path))
    except (ValueError, RecursionError) as error:
        raise CelmError(f"{path} is damaged: not JSON") from error
    if not isinstance(value, dict):
        raise CelmError(f"{path} is damaged: not an object")
    return value
