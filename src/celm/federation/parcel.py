"""A run folder as bytes, to carry a run to another machine and home again, at any moment of its life.

Packed and unpacked in an order that keeps the folder whole: the record of rounds is read after the checkpoint and
written before it, so it always reaches as far; `result.json`, which says that a run is finished, is written last.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from re import fullmatch

from celm.base.errors import CelmError
from celm.base.files import explained, write_bytes
from celm.federation.folder import Folder

BEFORE = ("settings.toml", "facts.json", "rounds.jsonl", "times.jsonl", "probes.safetensors")
CHECKPOINT = r"checkpoints/round-\d{6,}\.safetensors"
AFTER = ("model.safetensors", "result.json")
MOST_BYTES = 2**30


def pack(folder: Folder) -> dict[str, bytes]:
    """The files of a run, also of one that goes on meanwhile; of its checkpoints only the newest."""
    newest = folder.checkpoint_files()[-1:]
    names = [*AFTER[::-1], *(f"checkpoints/{path.name}" for path in newest), *BEFORE[::-1]]
    files: dict[str, bytes] = {}
    for name in names:
        with suppress(FileNotFoundError):
            files[name] = (folder.path / name).read_bytes()
    if (size := sum(map(len, files.values()))) > MOST_BYTES:
        raise CelmError(
            f"{folder.path} is too large to travel: {size / 2**20:.0f} MiB of at most {MOST_BYTES >> 20}"
        )
    return files


def unpack(files: Mapping[str, bytes], folder: Folder) -> None:
    """Put the files into `folder`, each wholly or not at all; older checkpoints go."""
    for name in files:
        if name not in (*BEFORE, *AFTER) and not fullmatch(CHECKPOINT, name):
            raise CelmError(f"'{name}' is no file of a run folder")
    checkpoints = sorted(name for name in files if name not in (*BEFORE, *AFTER))
    with explained(folder.path, "create"):
        folder.checkpoints.mkdir(parents=True, exist_ok=True)
    for name in (*BEFORE, *checkpoints, *AFTER):
        if name in files:
            write_bytes(folder.path / name, files[name])
    for old in folder.checkpoint_files():
        if checkpoints and f"checkpoints/{old.name}" not in checkpoints:
            with explained(old, "remove"):
                old.unlink(missing_ok=True)
