"""The record that a consortium keeps of its rounds: one JSON line each, chained by digests.

round, time        which, and when it was closed
asked, absent      the clients sent a model; those known that were not connected
received           client -> SHA-256 of the model it returned, and the samples it says it has
excluded, strays   client -> why its reply does not count; replies that belonged to nobody
start, model       SHA-256 of the global model before and after
weights, standing, scores, evidence, diagnostics     what the rule made of it
metrics            what clients reported, averaged
settings, versions SHA-256 of the settings; celm, flwr, torch
previous           SHA-256 of the line before (see `celm.federation.chain`)
"""

from __future__ import annotations

import platform
from collections.abc import Mapping
from datetime import UTC, datetime
from functools import cache
from importlib.metadata import version
from typing import Any

from celm.base.files import digest
from celm.federation.chain import check_chain, last_digest, verify
from celm.models.state import StateDict
from celm.rules.exchange import Update

__all__ = ["check_chain", "entry", "last_digest", "received", "verify", "versions"]


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
