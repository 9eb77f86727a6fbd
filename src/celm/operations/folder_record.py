"""Read a run or a federation, finished or not, into one form. The chain of a federation is verified."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from celm.base.digests import bytes_sha256
from celm.base.errors import CelmError
from celm.base.files import os_errors_as_celm_error
from celm.base.json_files import parse_jsonl
from celm.metrics.collapse import full_accuracy, is_accuracy
from celm.records.federation_files import FederationRecord, is_state_folder, read_federation
from celm.records.federation_records import FailedAttempt, FederationRound
from celm.records.metric_series import MetricSeries, Source, metric_series
from celm.records.run_files import RunFiles
from celm.records.run_records import RoundRecord, RunRound
from celm.records.schema import parse_record

_SOURCE_ORDER: Sequence[Source] = ("server", "clients", "training")
"""Which accuracy is reported first."""


@dataclass(frozen=True)
class FolderRecord:
    """The finished rounds of a run or of a federation."""

    folder: Path
    rounds: Sequence[RoundRecord]
    """One or more rounds."""
    planned_rounds: int
    """0 if it is not known."""
    classes: int
    metrics: Sequence[MetricSeries]
    last_time: datetime
    """When the last round ended."""
    digest: str
    """Of a federation, the digest of the last line of the record; of a run, the SHA-256 of rounds.jsonl."""
    failures: Sequence[FailedAttempt] = ()

    @property
    def clients(self) -> list[str]:
        """All clients, in the order of the last round."""
        last = list(self.rounds[-1].client_weights or {})
        others = dict.fromkeys(client for record in self.rounds for client in record.client_weights or {})
        return list(dict.fromkeys([*last, *others]))

    @property
    def is_finished(self) -> bool:
        return 0 < self.planned_rounds <= self.rounds[-1].round

    @property
    def accuracy(self) -> MetricSeries | None:
        """The accuracy to report: of the server if it evaluates, else of clients; None if there is none."""
        series = [line for line in self.metrics if is_accuracy(line.name)]
        order = [(_SOURCE_ORDER.index(line.source), line.name != "accuracy", line.name) for line in series]
        return series[order.index(min(order))] if series else None


def asked_clients(record: RoundRecord) -> list[str]:
    """Return the clients that were sent a model."""
    if isinstance(record, FederationRound):
        return record.asked
    return record.clients if isinstance(record, RunRound) else []


def answered_clients(record: RoundRecord) -> list[str]:
    """Return the clients whose reply arrived and had a usable form."""
    if isinstance(record, FederationRound):
        return list(record.received)
    return [client for client in asked_clients(record) if client not in record.excluded]


def trained_clients(record: RoundRecord) -> list[str]:
    """Return the clients whose update was used and shows training."""
    return [
        client
        for client in answered_clients(record)
        if client not in record.excluded and not {"idle", "unchanged"} & record.flags.get(client, {}).keys()
    ]


def last_accuracy(series: MetricSeries) -> float:
    """Return the last value as a fraction.

    >>> last_accuracy(MetricSeries("server", "accuracy", {1: 40.0, 2: 75.0}))
    0.75
    """
    return list(series.values.values())[-1] / full_accuracy(series.values.values())


def read_folder_record(
    folder: Path, hint: str = "give a run, or the state folder of a Flower strategy"
) -> FolderRecord:
    """Return the record of a run or a federation. Raise CelmError if it is neither, damaged or without a round.

    `hint` says which folders the command accepts.
    """
    if is_state_folder(folder):
        return from_federation(folder, read_federation(folder))
    if (folder / "settings.toml").is_file():
        return _read_run(folder)
    missing = "has no settings.toml or rounds.jsonl" if folder.is_dir() else "is not a folder"
    raise CelmError(f"cannot read {folder}: it {missing}", hint)


def from_federation(folder: Path, federation: FederationRecord) -> FolderRecord:
    """Return a federation's record, which was read from `folder`, in the common form."""
    return FolderRecord(
        folder,
        federation.rounds,
        federation.settings.rounds,
        federation.settings.classes,
        metric_series(
            [line.model_dump() for line in federation.evaluations],
            [line.model_dump(include={"round", "metrics"}) for line in federation.rounds],
        ),
        round_time(federation.rounds[-1], folder),
        federation.digest,
        federation.failures,
    )


def round_time(record: RoundRecord, folder: Path) -> datetime:
    """Return when a round of a federation ended."""
    text = record.time if isinstance(record, FederationRound) else ""
    try:
        time = datetime.fromisoformat(text)
    except ValueError as error:
        raise CelmError(f"{folder / 'rounds.jsonl'} is damaged: line {record.round}: time") from error
    return time.astimezone(UTC) if time.tzinfo else time.replace(tzinfo=UTC)


def _read_run(folder: Path) -> FolderRecord:
    files = RunFiles.open(folder)
    path = files.records_path
    with os_errors_as_celm_error(path, "read"):
        content = path.read_bytes() if path.exists() else b""
        modified = path.stat().st_mtime if path.exists() else 0.0
    lines = parse_jsonl(content, path)
    rounds = [parse_record(RunRound, line, path, number) for number, line in enumerate(lines, 1)]
    if not rounds:
        raise CelmError(f"there is no record: {path} has no complete line")
    values = {record.round: record.accuracy for record in rounds if record.accuracy is not None}
    classes = max((len(record.per_class) for record in rounds if record.per_class), default=0)
    return FolderRecord(
        folder,
        rounds,
        files.settings().run.rounds or 0,
        classes,
        [MetricSeries("server", "accuracy", values)] if values else [],
        datetime.fromtimestamp(modified, UTC),
        bytes_sha256(content),
    )
