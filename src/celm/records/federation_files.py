"""Read and check the state folder of a live federation, which `celm.flower` writes.

rounds.jsonl            the record: one line per round, chained by digests
evaluations.jsonl       metrics of the global model, one line per round, chained
failures.jsonl          attempts at a round that had too few usable replies, chained
dropped.jsonl           lines that were removed from these files, with the time
times.jsonl             seconds of each stage of a round
checkpoints/            the state after the last two rounds
settings.json           everything that the results depend on, in the first round (celm.records.federation_amendments)
names.json              fingerprint of each node to its client's name (celm.records.federation_names)
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from celm.base.errors import CelmError
from celm.base.files import dump_json, write_text
from celm.base.json_files import read_json
from celm.records.federation_amendments import amended_settings
from celm.records.federation_chain import EVALUATIONS, FAILURES, ROUNDS, read_federation_chain
from celm.records.federation_names import check_names, read_node_names, recorded_keys
from celm.records.federation_records import (
    EvaluationRecord,
    FailedAttempt,
    FederationRound,
    FederationSettings,
)
from celm.records.hash_chain import parse_digest
from celm.records.schema import parse_record, read_lines

SETTINGS_FILE, NAMES_FILE = "settings.json", "names.json"
_STATE_FOLDER_FILES = (ROUNDS, NAMES_FILE, "checkpoints")


@dataclass(frozen=True)
class StateRecord:
    """The record and the settings of a state folder, of any schema version, with an intact chain."""

    records: list[dict[str, Any]]
    settings: dict[str, Any] | None
    """The settings with all amendments; None if the folder has no settings.json."""
    digest: str
    """Digest of the last line of rounds.jsonl."""
    newest: str
    """Digest of the line that was written last, which may be an evaluation or a failure."""
    uncovered: int = 0
    """With `last`: how many evaluations and failures were written after the line with this digest."""


@dataclass(frozen=True)
class FederationRecord:
    """The files of a state folder, checked against each other."""

    settings: FederationSettings
    rounds: Sequence[FederationRound]
    evaluations: Sequence[EvaluationRecord]
    failures: Sequence[FailedAttempt]
    digest: str
    """Digest of the last line of rounds.jsonl."""


def is_state_folder(folder: Path) -> bool:
    """Check whether `celm.flower` wrote this folder; it is then neither a run nor an audit."""
    if (folder / "settings.toml").exists() or (folder / "ledger.json").exists():
        return False
    return any((folder / name).exists() for name in _STATE_FOLDER_FILES)


def read_state_folder(folder: Path, last: str | None = None) -> StateRecord:
    """Return the record and the settings if their digests match, and names.json belongs to the record.

    With `last`, the last round or the newest line must have this digest.
    """
    expected_digest = None if last is None else parse_digest(last)
    chain = read_federation_chain(folder)
    chain.rounds.require_lines()
    uncovered = 0 if expected_digest is None else chain.check_ends_with(expected_digest)
    records = chain.rounds.records
    check_names(read_node_names(folder / NAMES_FILE), recorded_keys(records), folder / NAMES_FILE)
    path = folder / SETTINGS_FILE
    settings = amended_settings(read_json(path), records, path) if path.exists() else None
    return StateRecord(records, settings, chain.rounds.head, chain.newest, uncovered)


def read_federation(folder: Path) -> FederationRecord:
    """Return settings, rounds and failures. Raise CelmError if the chain is broken or the files do not agree."""
    state = read_state_folder(folder)
    if state.settings is None:
        raise CelmError(f"{folder} has no {SETTINGS_FILE}", f"put it beside {ROUNDS}")
    settings = parse_record(FederationSettings, state.settings, folder / SETTINGS_FILE)
    path = folder / ROUNDS
    rounds = [
        parse_record(FederationRound, line, path, number) for number, line in enumerate(state.records, 1)
    ]
    rows = [row for line in rounds for row in (line.evidence or {}).values()]
    if any(len(row) != settings.classes for row in rows):
        raise CelmError(f"{path} is damaged: evidence does not have one number for each class")
    if not rounds[-1].client_weights:
        raise CelmError(f"{path} is damaged: client_weights of the last line has no clients")
    evaluations = read_lines(EvaluationRecord, folder / EVALUATIONS)
    failures = read_lines(FailedAttempt, folder / FAILURES)
    return FederationRecord(settings, rounds, evaluations, failures, state.digest)


def read_settings(path: Path) -> dict[str, Any]:
    """Return settings.json as it is in the file. Raise CelmError for another schema version or damaged settings."""
    settings = read_json(path)
    parse_record(FederationSettings, settings, path)
    return settings


def write_settings(path: Path, settings: Mapping[str, Any]) -> None:
    parse_record(FederationSettings, settings, path)
    write_text(path, dump_json(settings, indent=2) + "\n", private=True)
