"""The record that a consortium keeps of its rounds: one JSON line each, chained by digests.

round, time        which, and when it was closed
asked, absent      the clients sent a model; those known that were not connected
received           client -> SHA-256 of the model it returned, and the samples it says it has
excluded, strays   client -> why its reply does not count; replies that belonged to nobody
start, model       SHA-256 of the global model before and after
weights, standing, scores, evidence, diagnostics     what the rule made of it
metrics            what clients reported, averaged
settings, versions SHA-256 of the settings; celm, flwr, torch
previous           SHA-256 of the line before, so that no line can be changed, dropped or put in unnoticed
"""

from __future__ import annotations

import hashlib
import platform
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any

from celm.base.errors import CelmError
from celm.base.files import digest, dump_json
from celm.federation.folder import read_lines
from celm.models.state import StateDict
from celm.rules.exchange import Update

FIRST = "0" * 64


def received(updates: Mapping[str, Update]) -> dict[str, dict[str, Any]]:
    return {
        name: {"sha256": digest(update.model), "samples": update.size} for name, update in updates.items()
    }


def entry(
    number: int,
    start: StateDict,
    model: StateDict,
    settings: str,
    previous: str,
    facts: Mapping[str, Any],
) -> dict[str, Any]:
    """A round's line: `facts` are what happened, the rest is what makes it a ledger."""
    return {
        "round": number,
        "time": datetime.now(UTC).isoformat(timespec="seconds"),
        **facts,
        "start": digest(start),
        "model": digest(model),
        "settings": settings,
        "versions": versions(),
        "previous": previous,
    }


@cache
def versions() -> dict[str, str]:
    return {
        **{name: version(name) for name in ("celm", "flwr", "torch")},
        "python": platform.python_version(),
    }


def line_digest(record: Mapping[str, Any]) -> str:
    return hashlib.sha256(dump_json(record).encode()).hexdigest()


def last_digest(records: list[dict[str, Any]]) -> str:
    return line_digest(records[-1]) if records else FIRST


def check_chain(records: Iterable[Mapping[str, Any]]) -> None:
    """An error that names the first line that does not follow from the one before."""
    expected = FIRST
    for number, record in enumerate(records, start=1):
        if record.get("previous") != expected or record.get("round") != number:
            raise CelmError(f"the record was changed: line {number} does not follow from the one before")
        expected = line_digest(record)


def verify(path: str | Path) -> list[dict[str, Any]]:
    """The rounds in a `rounds.jsonl`, whose chain of digests is whole."""
    records = read_lines(Path(path))
    check_chain(records)
    return records
