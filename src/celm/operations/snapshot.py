"""What `celm watch` shows: the state of a run, a study or a federation at one moment, from its records only."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path

from celm.base.errors import CelmError
from celm.base.files import os_errors_as_celm_error
from celm.operations.check import client_reasons
from celm.operations.folder_record import (
    FolderRecord,
    answered_clients,
    asked_clients,
    read_folder_record,
    round_time,
)
from celm.records.federation_files import is_state_folder
from celm.records.federation_records import FederationRound
from celm.records.metric_series import MetricSeries, find_alarms
from celm.records.run_files import RunFiles
from celm.records.study_records import read_errors, read_study_manifest

_ROUNDS_OF_PACE = 10
"""The time left follows from the time of this many last rounds."""


@dataclass(frozen=True)
class ClientState:
    name: str
    weight: float | None
    earned: float | None
    rounds_asked: int
    rounds_answered: int
    reasons: str
    """Flags and exclusions in the last round in which it was asked."""


@dataclass(frozen=True)
class RoundsSnapshot:
    """A run or a federation."""

    folder: Path
    done: int
    planned: int
    """0 if it is not known."""
    last_time: datetime | None
    """None before the first round."""
    time_left: timedelta | None
    accuracy: MetricSeries | None
    alarms: Sequence[str]
    clients: Sequence[ClientState]
    """Clients with flags first, then by weight."""

    @property
    def is_finished(self) -> bool:
        return 0 < self.planned <= self.done


@dataclass(frozen=True)
class StudyRun:
    name: str
    done: int
    planned: int
    accuracy: float | None
    state: str
    """`finished`, `failed`, `started` or `waiting`."""


@dataclass(frozen=True)
class StudySnapshot:
    folder: Path
    runs: Sequence[StudyRun]

    @property
    def is_finished(self) -> bool:
        return all(run.state in ("finished", "failed") for run in self.runs)


def snapshot_folder(folder: Path) -> RoundsSnapshot | StudySnapshot:
    """Read the folder. Raise CelmError if it is none of ours, damaged or changed."""
    if _is_study(folder):
        return StudySnapshot(folder, _study_runs(folder))
    is_ours = is_state_folder(folder) or (folder / "settings.toml").is_file()
    if is_ours and not _has_round(folder / "rounds.jsonl"):
        return RoundsSnapshot(folder, 0, 0, None, None, None, [], [])
    hint = "give a run, a study, a comparison, or the state folder of a Flower strategy"
    record = read_folder_record(folder, hint)
    alarms = find_alarms(record.metrics, record.classes) if record.classes else []
    return RoundsSnapshot(
        folder,
        record.rounds[-1].round,
        record.planned_rounds,
        record.last_time,
        _time_left(record),
        record.accuracy,
        [alarm.text for alarm in alarms if not alarm.is_over],
        _client_states(record),
    )


def _has_round(path: Path) -> bool:
    """Return whether the file has a complete line."""
    if not path.exists():
        return False
    with os_errors_as_celm_error(path, "read"), path.open("rb") as file:
        return file.readline().endswith(b"\n")


def content_mark(folder: Path) -> tuple[tuple[str, int, int], ...]:
    """Return what changes if the folder gets a new round: name, size and time of its records."""
    paths = [*folder.glob("*.json*"), *folder.glob("cells/*/*.json*"), *folder.glob("cells/*/*/*.json*")]
    marks = []
    for path in sorted(paths):
        try:
            status = path.stat()
        except OSError:  # a file that is being replaced
            continue
        marks.append((str(path), status.st_size, status.st_mtime_ns))
    return tuple(marks)


def _client_states(record: FolderRecord) -> list[ClientState]:
    asked = Counter(client for line in record.rounds for client in asked_clients(line))
    answered = Counter(client for line in record.rounds for client in answered_clients(line))
    last_asked = {client: line for line in record.rounds for client in asked_clients(line)}
    last = record.rounds[-1]
    states = []
    for client in record.clients:
        reasons = client_reasons(last_asked[client], client) if client in last_asked else {}
        states.append(
            ClientState(
                client,
                (last.client_weights or {}).get(client),
                last.earned.get(client),
                asked[client],
                answered[client],
                "; ".join(f"{kind}: {reason}" for kind, reason in reasons.items()),
            )
        )
    return sorted(states, key=lambda state: (not state.reasons, -(state.weight or 0.0)))


def _time_left(record: FolderRecord) -> timedelta | None:
    """Return the rounds that are left, at the pace of the last ones; None for a run, whose rounds have no times."""
    lines = record.rounds[-_ROUNDS_OF_PACE - 1 :]
    if record.is_finished or not record.planned_rounds or len(lines) < 2:
        return None
    if not isinstance(lines[0], FederationRound):
        return None
    pace = (record.last_time - round_time(lines[0], record.folder)) / (len(lines) - 1)
    return pace * (record.planned_rounds - lines[-1].round)


def _is_study(folder: Path) -> bool:
    return any((folder / name).exists() for name in ("study.json", "table.json", "cells"))


def _study_runs(folder: Path) -> list[StudyRun]:
    manifest = read_study_manifest(folder / "study.json")
    keys = {} if manifest is None else manifest.cells
    errors = read_errors(folder / "errors.json")
    started = {path.parent.relative_to(folder).as_posix() for path in folder.glob("cells/**/settings.toml")}
    runs = []
    for name in dict.fromkeys([*keys, *sorted(started)]):
        key = keys.get(name)
        label = name if key is None else f"{key.row}, {key.method}, seed {key.seed}"
        runs.append(_study_run(folder / name, label, key is not None and key.key in errors))
    return runs


def _study_run(path: Path, label: str, failed: bool) -> StudyRun:
    if not (path / "settings.toml").is_file():
        return StudyRun(label, 0, 0, None, "failed" if failed else "waiting")
    files = RunFiles(path)
    last = files.last_round()
    accuracy, done = last.get("accuracy"), last.get("round")
    try:
        planned = files.settings().run.rounds or 0
    except CelmError:
        planned = 0
    finished = (path / "result.json").exists()
    state = "finished" if finished else "failed" if failed else "started"
    return StudyRun(
        label,
        done if isinstance(done, int) else 0,
        planned,
        accuracy if isinstance(accuracy, float) else None,
        state,
    )
