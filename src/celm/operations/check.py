"""Check a run or a federation: flags, exclusions, collapsed accuracy, and a federation that has stalled.

By default a client counts with the last round in which it was asked, so a flag that is gone does not count. With
`since`, all rounds count that ended later.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from celm.base.client_order import natural_sorted
from celm.base.errors import CelmError
from celm.operations.folder_record import (
    FolderRecord,
    asked_clients,
    last_accuracy,
    read_folder_record,
    round_time,
)
from celm.records.federation_records import FederationRound
from celm.records.metric_series import find_alarms
from celm.records.run_records import RoundRecord

DEFAULT_STALLED_AFTER = timedelta(hours=24)
_UNITS = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days"}
_DIAGNOSTIC_FLAGS = ("idle", "nonfinite", "no_evidence")
"""Flags that records of an older celm have as diagnostics of the rule only."""


@dataclass(frozen=True)
class CheckResult:
    """The findings. Without any of them, the folder needs no attention."""

    folder: Path
    flags: Mapping[str, str]
    """Client to its flags with reasons, without exclusions."""
    excluded: Mapping[str, str]
    """Client to why its update was not used."""
    alarms: Sequence[str]
    """Accuracies that collapsed and did not recover, or were never above chance."""
    stalled: str | None
    """Why the federation seems to have stalled."""
    accuracy: float | None
    """The last accuracy as a fraction."""
    round: int
    rounds: int
    """The planned number of rounds; 0 if it is not known."""
    time: datetime
    """When the last round ended."""
    digest: str

    @property
    def found(self) -> bool:
        return bool(self.flags or self.excluded or self.alarms or self.stalled)

    def to_json(self) -> dict[str, Any]:
        return {
            "folder": str(self.folder.resolve()),
            "found": self.found,
            "flags": dict(self.flags),
            "excluded": dict(self.excluded),
            "alarms": list(self.alarms),
            "stalled": self.stalled,
            "accuracy": self.accuracy,
            "round": self.round,
            "rounds": self.rounds,
            "time": self.time.isoformat(timespec="seconds"),
            "record": self.digest,
        }


def check_folder(
    folder: Path,
    since: timedelta | None = None,
    stalled_after: timedelta = DEFAULT_STALLED_AFTER,
    now: datetime | None = None,
) -> CheckResult:
    """Check the record in `folder`. Raise CelmError if it cannot be read or was changed."""
    record = read_folder_record(folder)
    now = now or datetime.now(UTC)
    flags, excluded = _client_findings(_rounds_by_client(record, since, now))
    accuracy = record.accuracy
    alarms = find_alarms(record.metrics, record.classes) if record.classes else []
    return CheckResult(
        folder,
        flags,
        excluded,
        [alarm.text for alarm in alarms if not alarm.is_over],
        _describe_stall(record, stalled_after, now),
        None if accuracy is None else last_accuracy(accuracy),
        record.rounds[-1].round,
        record.planned_rounds,
        record.last_time,
        record.digest,
    )


def parse_duration(text: str) -> timedelta:
    """Return a duration such as 90s, 30m, 12h or 2d.

    >>> parse_duration("12h"), parse_duration("1.5d")
    (datetime.timedelta(seconds=43200), datetime.timedelta(days=1, seconds=43200))
    """
    match = re.fullmatch(r"(\d{1,6}(?:\.\d{1,6})?)([smhd])", text.strip())
    if match is None or not float(match[1]):
        raise CelmError(f"'{text}' is not a duration", "give a number with s, m, h or d, such as 12h")
    return timedelta(**{_UNITS[match[2]]: float(match[1])})


def _rounds_by_client(
    record: FolderRecord, since: timedelta | None, now: datetime
) -> dict[str, list[RoundRecord]]:
    """Return the rounds that count for each client."""
    if since is not None and not isinstance(record.rounds[-1], FederationRound):
        raise CelmError(
            f"cannot select rounds of {record.folder} by time", "the rounds of a run have no times"
        )
    rounds: dict[str, list[RoundRecord]] = {}
    for line in record.rounds:
        if since is not None and round_time(line, record.folder) < now - since:
            continue
        for client in asked_clients(line):
            rounds[client] = [*rounds.get(client, ()), line] if since is not None else [line]
    return rounds


def _client_findings(rounds: Mapping[str, Sequence[RoundRecord]]) -> tuple[dict[str, str], dict[str, str]]:
    """Return client to its flags, and client to why it was excluded, each with the last reason."""
    flags, excluded = {}, {}
    for client in natural_sorted(rounds):
        reasons: dict[str, str] = {}
        for record in rounds[client]:
            reasons |= client_reasons(record, client)
        exclusion = reasons.pop("excluded", None)
        if exclusion is not None:
            excluded[client] = exclusion
        if reasons:
            flags[client] = "; ".join(f"{kind}: {reason}" for kind, reason in reasons.items())
    return flags, excluded


def client_reasons(record: RoundRecord, client: str) -> dict[str, str]:
    """Return kind of flag to reason for a client in a round, exclusions included."""
    reasons = dict(record.flags.get(client, {}))
    if client in record.excluded:
        reasons["excluded"] = record.excluded[client]
    if isinstance(record, FederationRound):
        for kind in _DIAGNOSTIC_FLAGS:
            if client in (getattr(record.diagnostics, kind) or ()):
                reasons.setdefault(kind, "according to the rule")
    return reasons


def _describe_stall(record: FolderRecord, stalled_after: timedelta, now: datetime) -> str | None:
    if record.is_finished:
        return None
    next_round = record.rounds[-1].round + 1
    attempts = sum(failure.round == next_round for failure in record.failures)
    failed = f"; {attempts} failed attempts at round {next_round}" if attempts else ""
    age = now - record.last_time
    if age <= stalled_after and not attempts:
        return None
    of = f" of {record.planned_rounds}" if record.planned_rounds else ""
    return f"no round for {_format_age(age)} after round {next_round - 1}{of}{failed}"


def _format_age(age: timedelta) -> str:
    """Return a duration in its largest unit.

    >>> _format_age(timedelta(hours=50)), _format_age(timedelta(seconds=200))
    ('2.1 days', '3 minutes')
    """
    seconds = max(0.0, age.total_seconds())
    if seconds < 7200:
        return f"{seconds / 60:.0f} minutes"
    return f"{seconds / 3600:.1f} hours" if seconds < 172800 else f"{seconds / 86400:.1f} days"
