"""Checksums of a run folder: which bytes its checkpoint and its result belong to.

    checkpoint     SHA-256 of rounds.jsonl up to its round
    result.json    SHA-256 of settings.toml, rounds.jsonl, model.safetensors, and of its own values except `seconds`

They reveal damage and edits, not forgery: whoever rewrites a file can rewrite its checksum. Times are not covered: no
result depends on them, and a repeated run has others. Older folders have no checksums; they are read.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from celm.base.digests import bytes_sha256
from celm.base.errors import CelmError
from celm.base.files import os_errors_as_celm_error

MODEL_FILE = "model.safetensors"
_COVERED_FILES = ("settings.toml", "rounds.jsonl", MODEL_FILE)
_UNCOVERED_KEYS = ("seconds", "sha256")
_HINT = "restore it from a copy, or run the experiment again"


def run_file_sha256(path: Path) -> str:
    """Return the SHA-256 of a file of any size."""
    with os_errors_as_celm_error(path, "read"), path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def files_sha256(folder: Path) -> dict[str, str]:
    """Return name to SHA-256 of the files that a result belongs to."""
    return {name: run_file_sha256(folder / name) for name in _COVERED_FILES}


def values_sha256(values: Mapping[str, Any]) -> str:
    """Return the SHA-256 of the values of a result.json, except its own and the seconds that the run took."""
    covered = {key: value for key, value in values.items() if key not in _UNCOVERED_KEYS}
    return bytes_sha256(json.dumps(covered).encode())


def check_values(path: Path, values: Mapping[str, Any], expected: str | None) -> None:
    """Raise CelmError unless the values of a result.json have the SHA-256 that it records, if it records one."""
    if expected is None:
        return
    try:
        actual = values_sha256(values)
    except RecursionError as error:
        raise CelmError(f"{path} is damaged: nested too deeply") from error
    check_sha256(path, actual, expected, "the file")


def check_sha256(path: Path, actual: str, expected: str | None, source: str) -> None:
    """Raise CelmError unless a file has the SHA-256 that `source` records, if it records one."""
    if expected not in (None, actual):
        raise CelmError(f"{path} is damaged: its SHA-256 is not the one in {source}", _HINT)
