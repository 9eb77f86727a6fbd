"""The record of a live federation: one JSON line per round, chained by digests.

round, time            the round's number, and when it was closed
asked, absent          clients that were sent a model; clients that were not connected
keys                   client -> fingerprint of its key (see `celm.live.node_names`)
amendments             settings that hold from this round on (see `celm.records.federation_amendments`)
received               client -> SHA-256 of the model it returned, and the number of samples it reports
excluded, unexpected   client -> why its reply was not used; replies that answer no message of the round
start, model           SHA-256 of the global model before and after
weights, client_weights, scores, evidence, diagnostics     the result of the rule
merge                  why the aggregated model was refused, if it was
metrics                metrics of the clients, aggregated
metrics_excluded       client -> why its metrics are left out of this mean
settings, versions     SHA-256 of the settings; versions of celm, torch and the framework
witnesses              client -> digest of the signed head that it kept, if it returns one
salt                   hides the leaves of clients, if the record is signed (see `celm.records.signed.leaves`)
heads, previous        digests that chain the line (see `celm.records.federation_chain`)
"""

from __future__ import annotations

import platform
from collections.abc import Mapping
from datetime import UTC, datetime
from functools import cache
from importlib.metadata import version
from typing import Any

from celm.base.files import tensor_digest
from celm.models.state_dict import StateDict
from celm.records.federation_records import FederationRound
from celm.records.hash_chain import check_chain, last_line_digest, verify_chain
from celm.rules.messages import ClientUpdate

__all__ = [
    "check_chain",
    "installed_versions",
    "last_line_digest",
    "make_round_record",
    "update_digests",
    "verify_chain",
]


def update_digests(updates: Mapping[str, ClientUpdate]) -> dict[str, dict[str, Any]]:
    return {
        name: {"sha256": tensor_digest(update.model), "samples": update.num_examples}
        for name, update in updates.items()
    }


def make_round_record(
    round_number: int,
    global_model: StateDict,
    new_model: StateDict,
    settings: str,
    framework: str,
    links: Mapping[str, Any],
    events: Mapping[str, Any],
) -> dict[str, Any]:
    """Return a round's line: `events`, with the digests that chain it."""
    return {
        "schema_version": FederationRound.current_version(),
        "round": round_number,
        "time": datetime.now(UTC).isoformat(timespec="seconds"),
        **events,
        "start": tensor_digest(global_model),
        "model": tensor_digest(new_model),
        "settings": settings,
        "versions": installed_versions(framework),
        **links,
    }


@cache
def installed_versions(framework: str) -> dict[str, str]:
    return {
        **{name: version(name) for name in ("celm", framework, "torch")},
        "python": platform.python_version(),
    }
