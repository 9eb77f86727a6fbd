"""Verify that a finished audit still matches its files: recompute all digests and, on request, repeat the audit."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from celm.auditing.audit import audit
from celm.auditing.auditor import AuditCallback
from celm.auditing.checkpoint_reader import file_sha256
from celm.auditing.ledger import LEDGER_FILE, REPORT_FILE, RESULT_FILE, read_ledger
from celm.auditing.settings import AuditSettings, RenamedSettingError
from celm.base.errors import CelmError
from celm.base.files import dump_json
from celm.base.json_files import read_json
from celm.models import require_confirmed_factory

_COMPARED_KEYS = ("scores", "agreement_scores", "evidence", "weights", "holds", "sole_holders", "excluded")
_MAX_DIFFERENCES = 10


def verify_audit(
    folder: str | Path,
    full: bool = False,
    watch: AuditCallback | None = None,
    model: str | None = None,
    last: str | None = None,
) -> list[str]:
    """Return the problems of a finished audit, one line each; an empty list if the report belongs to its files.

    Every digest is recomputed. `last` is the SHA-256 of the ledger that the audit printed: only this digest shows that
    the ledger itself was not rewritten. With `full`, the audit is repeated from the files and its numbers are compared.
    Then `model` must repeat the name of a user's model: a ledger is not trusted, and `package.module:factory` is code.
    """
    path = Path(folder)
    ledger = read_ledger(path)
    problems = [] if last is None else _check_ledger(path / LEDGER_FILE, last)
    problems += _find_changes(path, ledger)
    if problems or not full:
        return problems
    inputs, settings = ledger["inputs"], _parse_settings(path / LEDGER_FILE, ledger["settings"])
    global_path, clients = inputs.get("global"), inputs.get("clients")
    if clients is None or (global_path is None and not _has_global_file(ledger)):
        raise CelmError(f"cannot repeat the audit {path}: its models were in memory")
    if not isinstance(global_path, str | None) or not _is_list_of_text(clients):
        raise CelmError(f"damaged ledger {path / LEDGER_FILE}: 'inputs' are not paths")
    require_confirmed_factory(settings.model, model, path / LEDGER_FILE)
    global_model = None if global_path is None else path / global_path
    client_paths = [path / client for client in clients]
    repeated = audit(global_model, client_paths, watch=watch, preset=None, **settings.to_dict())
    differences = find_differences(
        _comparable_values(repeated.document), _comparable_values(read_json(path / RESULT_FILE))
    )
    return [f"repeated audit differs: {line}" for line in differences[:_MAX_DIFFERENCES]]


def _parse_settings(ledger_file: Path, settings: Mapping[str, Any]) -> AuditSettings:
    """Return the settings of a ledger, which may not contain other arguments of `audit`, such as a folder."""
    try:
        return AuditSettings.parse(settings)
    except RenamedSettingError as error:
        raise CelmError(
            f"cannot repeat the audit of {ledger_file}: an older celm wrote it; {error}",
            "audit the files again with this version",
        ) from error
    except CelmError as error:
        raise CelmError(f"damaged ledger {ledger_file}: {error}") from error


def _is_list_of_text(value: object) -> bool:
    return isinstance(value, list) and all(isinstance(element, str) for element in value)


def _comparable_values(document: Mapping[str, Any]) -> dict[str, Any]:
    """Return the compared parts of a result. Of flags, only the clients: reasons contain rounded numbers."""
    values = {name: document.get(name) for name in _COMPARED_KEYS}
    return values | {"flags": sorted(map(str, document.get("flags") or {}))}


def _find_changes(folder: Path, ledger: Mapping[str, Any]) -> list[str]:
    """Return one line for each file that is not as the ledger records it."""
    changes = []
    for name in (RESULT_FILE, REPORT_FILE):
        changes += _check_digest(folder / name, name, ledger["made"].get(name))
    for entry in ledger["files"]:
        owner = " ".join(str(entry[key]) for key in ("role", "client", "round") if entry.get(key))
        label = f"{entry['path']} ({owner})"
        if entry.get("sha256") is not None:
            changes += _check_digest(folder / entry["path"], label, entry["sha256"])
        elif not entry.get("excluded"):
            changes.append(f"{label} has no digest in the ledger, but was used")
    return changes or _find_missing_entries(folder, ledger)


def _find_missing_entries(folder: Path, ledger: Mapping[str, Any]) -> list[str]:
    """Return one line for each model that was used but has no file in the ledger. Models in memory have no file."""
    missing = []
    if ledger["inputs"].get("global") is not None and not _has_global_file(ledger):
        missing.append("the global model was a file, but has no file in the ledger")
    if ledger["inputs"].get("clients") is None:
        return missing
    recorded = {
        (entry.get("round"), entry.get("client"))
        for entry in ledger["files"]
        if entry.get("role") == "client" and not entry.get("excluded")
    }
    unrecorded: dict[str, None] = {}
    for round in read_json(folder / RESULT_FILE).get("rounds") or []:
        scores = round.get("scores") if isinstance(round, dict) else None
        names = scores if isinstance(scores, dict) else {}
        unrecorded |= dict.fromkeys(name for name in names if (round.get("name"), name) not in recorded)
    return missing + [f"{name}: has a score, but no file in the ledger" for name in unrecorded]


def _has_global_file(ledger: Mapping[str, Any]) -> bool:
    return any(entry.get("role") == "global" for entry in ledger["files"])


def _check_ledger(path: Path, expected: str) -> list[str]:
    actual = file_sha256(path)
    if actual == expected.strip().lower():
        return []
    return [f"{path.name} has changed: its SHA-256 is {actual}, the given one is {expected.strip()}"]


@dataclass(frozen=True)
class FileCounts:
    """The number of files in a ledger, by whether they have a digest."""

    checked: int
    without_digest: int

    def __str__(self) -> str:
        files = f"{self.checked} file{'' if self.checked == 1 else 's'} checked"
        return f"{files}, {self.without_digest} without digest" if self.without_digest else files


def count_files(ledger: Mapping[str, Any]) -> FileCounts:
    """Count the files of a ledger. The file of an excluded client has no digest if it could not be read."""
    without_digest = sum(entry.get("sha256") is None for entry in ledger["files"])
    return FileCounts(len(ledger["files"]) - without_digest, without_digest)


def _check_digest(path: Path, label: str, expected: object) -> list[str]:
    try:
        actual = file_sha256(path)
    except CelmError as error:
        return [f"{label}: {error}"]
    if actual == expected:
        return []
    return [f"{label} has changed: its SHA-256 is {actual}, in the ledger {expected}"]


def find_differences(first: Any, second: Any, key_path: str = "") -> list[str]:
    """Return one line for each value of `second` that differs from `first`, up to rounding on another machine."""
    if isinstance(first, Mapping) and isinstance(second, Mapping):
        if list(first) != list(second):
            return [f"{key_path or 'the result'} has keys {list(second)[:5]}, not {list(first)[:5]}"]
        return [
            line
            for key in first
            for line in find_differences(first[key], second[key], f"{key_path}.{key}".strip("."))
        ]
    if isinstance(first, list) and isinstance(second, list) and len(first) == len(second):
        pairs = enumerate(zip(first, second, strict=True))
        return [line for i, pair in pairs for line in find_differences(*pair, f"{key_path}[{i}]")]
    if isinstance(first, float) and isinstance(second, int | float):
        is_close = math.isclose(first, second, rel_tol=1e-3, abs_tol=1e-3)
        return [] if is_close else [f"{key_path}: {second}, not {first}"]
    return [] if first == second else [f"{key_path}: {dump_json(second)[:80]}, not {dump_json(first)[:80]}"]
