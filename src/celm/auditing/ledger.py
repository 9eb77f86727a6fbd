"""The evidence ledger: which bytes a report is about, and what made it.

    files       role, round, client, path (from the audit's folder), size and SHA-256 of every file that was read
    inputs      the named paths, settings, versions, seed: all that is needed to repeat the audit
    made        SHA-256 of audit.json and report.html

The audit prints the digest of the ledger. A member who keeps that digest can check later that no file was replaced.
"""

from __future__ import annotations

import os
import platform
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from celm import __version__
from celm.auditing.checkpoint_reader import file_sha256
from celm.auditing.sources import Source
from celm.base.digests import bytes_sha256
from celm.base.errors import CelmError
from celm.base.json_files import read_json

RESULT_FILE, REPORT_FILE, LEDGER_FILE = "audit.json", "report.html", "ledger.json"
_RECORDED_PACKAGES = ("celm", "torch", "numpy", "scipy", "safetensors", "transformers")


@dataclass(frozen=True)
class LedgerEntry:
    """A file of the audit; without digest and size if it could not be read."""

    role: str
    round: str
    client: str | None
    path: Path
    size: int | None = None
    sha256: str | None = None
    excluded: str | None = None
    """The reason for which the client is excluded."""

    def to_json(self, folder: Path) -> dict[str, Any]:
        """Return the entry as JSON values, with the path from `folder`."""
        record = {
            "role": self.role,
            "round": self.round,
            "client": self.client,
            "path": relative_path(self.path, folder),
            "size": self.size,
            "sha256": self.sha256,
        }
        return record | ({"excluded": self.excluded} if self.excluded else {})


@dataclass
class Manifest:
    """The files that an audit has read so far, and its remarks on clients."""

    files: list[LedgerEntry] = field(default_factory=list)
    _remarks: dict[str, list[str]] = field(default_factory=dict)

    def add_model(
        self,
        role: str,
        round: str,
        source: Source,
        size: int | None,
        sha256: str | None,
        excluded: str | None = None,
    ) -> None:
        """Record the file of a model; a model in memory has none."""
        if source.path is not None:
            client = source.name if role == "client" else None
            self.files.append(LedgerEntry(role, round, client, source.path, size, sha256, excluded))

    def mark_excluded(self, client: str, round: str, reason: str) -> None:
        """Record that a client is excluded after its file was read."""
        self._amend(client, round, excluded=reason)

    def mark_changed(self, client: str, round: str, reason: str) -> None:
        """Record that a client is excluded because its file changed. The file then has no digest."""
        self._amend(client, round, excluded=reason, size=None, sha256=None)

    def _amend(self, client: str, round: str, **changes: Any) -> None:
        for index, entry in enumerate(self.files):
            if (entry.client, entry.round) == (client, round):
                self.files[index] = replace(entry, **changes)

    def add_other_files(self, paths: Mapping[str, str | None]) -> None:
        """Record files by role that are not checkpoints, but on which the result depends."""
        for role, name in paths.items():
            if name and (path := Path(name).resolve()).is_file():
                self.files.append(LedgerEntry(role, "", None, path, path.stat().st_size, file_sha256(path)))

    def add_remark(self, client: str, remark: str) -> None:
        """Record a remark on a client once."""
        client_remarks = self._remarks.setdefault(client, [])
        if remark not in client_remarks:
            client_remarks.append(remark)

    @property
    def notes(self) -> dict[str, str]:
        """The remarks on each client, as one text."""
        return {client: "; ".join(client_remarks) for client, client_remarks in self._remarks.items()}


def relative_path(path: Path, folder: Path) -> str:
    """Return a path from `folder`, as text that can be saved for any bytes of a name."""
    absolute = path.parent.resolve() / path.name  # a link itself, not its target
    return os.path.relpath(absolute, folder.resolve()).encode("utf-8", "backslashreplace").decode()


def make_ledger(
    files: Sequence[LedgerEntry],
    inputs: Mapping[str, Any],
    settings: Mapping[str, Any],
    outputs: Mapping[str, str],
    folder: Path,
) -> dict[str, Any]:
    """Build the ledger of an audit in `folder`. `outputs` are the texts of its files by name."""
    return {
        "ledger": 1,
        "celm": __version__,
        "versions": _package_versions(),
        "seed": settings["seed"],
        "settings": dict(settings),
        "inputs": dict(inputs),
        "files": [entry.to_json(folder) for entry in files],
        "made": {name: bytes_sha256(content.encode()) for name, content in outputs.items()},
    }


def _package_versions() -> dict[str, str]:
    installed = {"python": platform.python_version()}
    for name in _RECORDED_PACKAGES:
        try:
            installed[name] = version(name)
        except PackageNotFoundError:
            continue
    return installed


def read_ledger(folder: Path) -> dict[str, Any]:
    """Read the ledger of a finished audit and check the types of its parts."""
    path = folder / LEDGER_FILE
    if not path.is_file():
        raise CelmError(f"not a finished audit: {folder} has no {LEDGER_FILE}")
    content = read_json(path)
    required = {"files": list, "made": dict, "settings": dict, "inputs": dict}
    for name, expected_type in required.items():
        if not isinstance(content.get(name), expected_type):
            raise CelmError(f"damaged ledger {path}: '{name}' is not a {expected_type.__name__}")
    for entry in content["files"]:
        if not isinstance(entry, dict) or not isinstance(entry.get("path"), str):
            raise CelmError(f"damaged ledger {path}: an entry of 'files' has no path")
    return content
