"""The folder of an audit, and how a killed audit is resumed.

    settings.json     the settings and the named paths; written before any heavy work
    probes/           one file per probed model, written as soon as it is done
    audit.json        the result
    report.html       the result as a page
    ledger.json       the files that the result is about; written last, so its presence marks a finished audit

The same command on the same folder computes what is missing. Another audit needs another folder. A finished audit is
not overwritten by an audit of other files.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from celm.auditing.checkpoint_reader import file_sha256
from celm.auditing.ledger import (
    LEDGER_FILE,
    REPORT_FILE,
    RESULT_FILE,
    Manifest,
    make_ledger,
    read_ledger,
)
from celm.auditing.result import Audit
from celm.base.digests import bytes_sha256
from celm.base.errors import CelmError
from celm.base.files import dump_json, os_errors_as_celm_error, remove_partial_files, write_text
from celm.base.json_files import read_json
from celm.base.locking import exclusive

_RESULT_TYPES: Mapping[str, type] = {
    "classes": list,
    "rounds": list,
    **dict.fromkeys(
        ("scores", "probe_standard_errors", "weights", "z_scores", "flags", "sole_holders"), dict
    ),
    **dict.fromkeys(("evidence", "shares", "distribution", "excluded", "settings"), dict),
}
"""Keys of audit.json that a result cannot do without."""
_SETTINGS_FILE, _PROBES_FOLDER, _LOCK_FILE = "settings.json", "probes", "audit.lock"


class AuditFolder:
    """A new or empty folder, or the folder of an audit with the same settings and paths (`request`)."""

    def __init__(self, path: Path, request: Mapping[str, Any]) -> None:
        self.path = path
        with os_errors_as_celm_error(path, "create"):
            self._created_directory = not path.exists()
            path.mkdir(parents=True, exist_ok=True)
            entries = [entry.name for entry in path.iterdir() if not entry.name.endswith((".part", ".lock"))]
        self._is_new = not entries
        if entries:
            if _SETTINGS_FILE not in entries:
                raise CelmError(f"folder is not empty: {path}", "choose another folder")
            if read_json(path / _SETTINGS_FILE) != request:
                raise CelmError(f"folder of another audit: {path}", "choose another folder")
        write_text(path / _SETTINGS_FILE, dump_json(request, indent=2) + "\n")

    @property
    def probes(self) -> Path:
        """The folder of saved probes."""
        return self.path / _PROBES_FOLDER

    @contextmanager
    def lock(self) -> Iterator[None]:
        """Exclude other processes. After an error, remove a new folder without probes."""
        with exclusive(self.path / _LOCK_FILE):
            try:
                with os_errors_as_celm_error(self.probes, "create"):
                    self.probes.mkdir(exist_ok=True)
                remove_partial_files(self.path, self.probes)
                yield
            except CelmError:
                if self._is_new and not any(self.probes.iterdir()):
                    self._remove()
                raise

    def _remove(self) -> None:
        """Remove the files of an audit that has no probes."""
        with suppress(OSError):
            self.probes.rmdir()
        for name in (_SETTINGS_FILE, _LOCK_FILE):
            (self.path / name).unlink(missing_ok=True)
        if self._created_directory:
            with suppress(OSError):
                self.path.rmdir()


def write_audit(
    folder: AuditFolder, document: Mapping[str, Any], manifest: Manifest, inputs: Mapping[str, Any]
) -> Audit:
    """Write the result, the report and, last, the ledger. `inputs` are the named paths."""
    path = folder.path
    draft = Audit(document, [entry.to_json(path) for entry in manifest.files], path)
    outputs = {RESULT_FILE: draft.to_json(), REPORT_FILE: draft.to_html()}
    ledger = make_ledger(manifest.files, inputs, document["settings"], outputs, path)
    if (path / LEDGER_FILE).exists() and read_ledger(path)["files"] != ledger["files"]:
        raise CelmError(f"folder of a finished audit of other files: {path}", "choose another folder")
    for name, content in outputs.items():
        write_text(path / name, content)
    ledger_text = dump_json(ledger, indent=2) + "\n"
    write_text(path / LEDGER_FILE, ledger_text)
    return Audit(document, draft.files, path, bytes_sha256(ledger_text.encode()))


def read_audit(folder: Path) -> Audit:
    """Read the audit in a folder. Raise CelmError if it is not finished, or its result is not the ledger's."""
    result_path = folder / RESULT_FILE
    if not (folder / LEDGER_FILE).is_file():
        raise CelmError(f"{folder} is not finished: it has no {LEDGER_FILE}", "repeat the celm audit command")
    ledger = read_ledger(folder)
    if file_sha256(result_path) != ledger["made"].get(RESULT_FILE):
        raise CelmError(
            f"{result_path} is damaged: its SHA-256 is not that in {LEDGER_FILE}", "audit the files again"
        )
    document = read_json(result_path)
    for name, expected_type in _RESULT_TYPES.items():
        if not isinstance(document.get(name), expected_type):
            raise CelmError(f"{result_path} is damaged: '{name}' is not a {expected_type.__name__}")
    return Audit(document, ledger["files"], folder, file_sha256(folder / LEDGER_FILE))
