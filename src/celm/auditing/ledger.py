"""The evidence ledger: which bytes a report is about, and what made it; and the check that it still is.

    files       role, round, client, path (from the audit's folder), size and SHA-256 of every file that was read
    inputs      the paths that were named, settings, versions, seed: all it takes to repeat the audit
    made        SHA-256 of audit.json and report.html

Whoever keeps the ledger's own digest, which the audit prints, can tell later that nothing was exchanged.
"""

from __future__ import annotations

import hashlib
import math
import os
import platform
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from celm import __version__
from celm.auditing.reading import fingerprint
from celm.base.errors import CelmError
from celm.base.files import dump_json
from celm.federation.folder import read_json

RESULT, REPORT, LEDGER = "audit.json", "report.html", "ledger.json"
PACKAGES = ("celm", "torch", "numpy", "scipy", "safetensors", "transformers")


@dataclass(frozen=True)
class File:
    """A file that was looked at; without a digest where it could not be read."""

    role: str
    round: str
    client: str | None
    path: Path
    size: int | None = None
    sha256: str | None = None
    excluded: str | None = None

    def entry(self, folder: Path) -> dict[str, Any]:
        told = {
            "role": self.role,
            "round": self.round,
            "client": self.client,
            "path": written(self.path, folder),
            "size": self.size,
            "sha256": self.sha256,
        }
        return told | ({"excluded": self.excluded} if self.excluded else {})


def written(path: Path, folder: Path) -> str:
    """A path from the folder, as text that can be saved whatever bytes a name has."""
    place = path.parent.resolve() / path.name  # of a link, its own place
    return os.path.relpath(place, folder.resolve()).encode("utf-8", "backslashreplace").decode()


def ledger(
    files: Sequence[File],
    inputs: Mapping[str, Any],
    settings: Mapping[str, Any],
    made: Mapping[str, str],
    folder: Path,
) -> dict[str, Any]:
    return {
        "ledger": 1,
        "celm": __version__,
        "versions": versions(),
        "seed": settings["seed"],
        "settings": dict(settings),
        "inputs": dict(inputs),
        "files": [file.entry(folder) for file in files],
        "made": {name: sha256(content.encode()) for name, content in made.items()},
    }


def versions() -> dict[str, str]:
    found = {"python": platform.python_version()}
    for name in PACKAGES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found


def sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def read_ledger(folder: Path) -> dict[str, Any]:
    path = folder / LEDGER
    if not path.is_file():
        raise CelmError(f"{folder} is not a finished audit: it has no {LEDGER}")
    found = read_json(path)
    kinds = {"files": list, "made": dict, "settings": dict, "inputs": dict}
    for name, kind in kinds.items():
        if not isinstance(found.get(name), kind):
            raise CelmError(f"{path} is damaged: it has no {name}")
    for entry in found["files"]:
        if not isinstance(entry, dict) or not isinstance(entry.get("path"), str):
            raise CelmError(f"{path} is damaged: a file has no path")
    return found


def changed(folder: Path, found: Mapping[str, Any]) -> list[str]:
    """What is no longer as the ledger has it, a line for each file; nothing where all is."""
    told = []
    for name in (RESULT, REPORT):
        told += compare(folder / name, name, found["made"].get(name))
    for entry in found["files"]:
        if entry.get("sha256") is None:
            continue
        who = f"{entry.get('role')} {entry.get('client') or ''}".strip()
        where = f"{entry['path']} ({', '.join(filter(None, (who, entry.get('round'))))})"
        told += compare(folder / entry["path"], where, entry["sha256"])
    return told


def compare(path: Path, where: str, expected: object) -> list[str]:
    try:
        actual = fingerprint(path)
    except CelmError as error:
        return [f"{where} {error}"]
    return (
        []
        if actual == expected
        else [f"{where} has changed: its SHA-256 is {actual}, the ledger has {expected}"]
    )


def differences(one: Any, other: Any, where: str = "") -> list[str]:
    """Where two results are not the same, up to the rounding of another machine."""
    if isinstance(one, Mapping) and isinstance(other, Mapping):
        if list(one) != list(other):
            return [f"{where or 'the result'} names {list(other)[:5]}, not {list(one)[:5]}"]
        return [
            line for key in one for line in differences(one[key], other[key], f"{where}.{key}".strip("."))
        ]
    if isinstance(one, list) and isinstance(other, list) and len(one) == len(other):
        pairs = enumerate(zip(one, other, strict=True))
        return [line for i, pair in pairs for line in differences(*pair, f"{where}[{i}]")]
    if isinstance(one, float) and isinstance(other, int | float):
        return (
            [] if math.isclose(one, other, rel_tol=1e-3, abs_tol=1e-3) else [f"{where}: {other}, not {one}"]
        )
    return [] if one == other else [f"{where}: {dump_json(other)[:80]}, not {dump_json(one)[:80]}"]
