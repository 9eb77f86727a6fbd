"""Copy a run folder, as bytes, to another machine and back, also while the run continues.

The order of reading and writing keeps the folder consistent. rounds.jsonl is read after the checkpoint and written
before it, so it always has the rounds of the checkpoint. result.json, which marks a run as finished, is written last.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from re import fullmatch

from celm.base.errors import CelmError
from celm.base.files import os_errors_as_celm_error, write_bytes
from celm.runs.run_folder import RunFolder

_FILES_BEFORE_CHECKPOINT = (
    "settings.toml",
    "environment.json",
    "rounds.jsonl",
    "times.jsonl",
    "probes.safetensors",
)
_CHECKPOINT_PATTERN = r"checkpoints/round-\d{6,}\.safetensors"
_FILES_AFTER_CHECKPOINT = ("model.safetensors", "result.json")
MAX_RUN_BYTES = 2**30


def read_run_files(folder: RunFolder) -> dict[str, bytes]:
    """Return the files of a run, with its newest checkpoint only."""
    newest = folder.checkpoint_files()[-1:]
    names = [
        *_FILES_AFTER_CHECKPOINT[::-1],
        *(f"checkpoints/{path.name}" for path in newest),
        *_FILES_BEFORE_CHECKPOINT[::-1],
    ]
    files: dict[str, bytes] = {}
    for name in names:
        with suppress(FileNotFoundError):
            files[name] = (folder.path / name).read_bytes()
    if (size := sum(map(len, files.values()))) > MAX_RUN_BYTES:
        raise CelmError(
            f"{folder.path} is too large to transfer: {size / 2**20:.0f} MiB of at most {MAX_RUN_BYTES >> 20}"
        )
    return files


def write_run_files(files: Mapping[str, bytes], folder: RunFolder) -> None:
    """Write each file atomically into `folder` and remove older checkpoints."""
    fixed_names = (*_FILES_BEFORE_CHECKPOINT, *_FILES_AFTER_CHECKPOINT)
    checkpoints = sorted(name for name in files if name not in fixed_names)
    for name in checkpoints:
        if not fullmatch(_CHECKPOINT_PATTERN, name):
            raise CelmError(f"not a file of a run folder: '{name}'")
    with os_errors_as_celm_error(folder.path, "create"):
        folder.checkpoints.mkdir(parents=True, exist_ok=True)
    for name in (*_FILES_BEFORE_CHECKPOINT, *checkpoints, *_FILES_AFTER_CHECKPOINT):
        if name in files:
            write_bytes(folder.path / name, files[name])
    for old in folder.checkpoint_files():
        if checkpoints and f"checkpoints/{old.name}" not in checkpoints:
            with os_errors_as_celm_error(old, "remove"):
                old.unlink(missing_ok=True)
