"""Flags of single clients over the rounds, and the sentence about a client that includes them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from celm.core.idle_detection import IDLE_THRESHOLD
from celm.records.federation_records import FederationRound
from celm.records.run_records import RoundRecord
from celm.report.client_summaries import ClientSummary
from celm.report.formatting import format_percent, pluralise
from celm.report.many_clients import percent_decimals
from celm.report.round_history import ClientEvents

_DIAGNOSTIC_REASONS = {
    "idle": f"idle: its model moved less than {IDLE_THRESHOLD} times the median",
    "nonfinite": "not probed: its model returns values that are not finite",
    "no_evidence": "no evidence: its model moved, but the probe raises its logits too little",
    "removed": "removed by the rule",
}
"""Diagnostic of the rule to its meaning."""


def list_flags(rounds: Sequence[RoundRecord]) -> list[ClientEvents]:
    """Return the flags of single clients with their rounds, each with its last reason. Exclusions are not included."""
    reasons: dict[tuple[str, str], str] = {}
    numbers: dict[tuple[str, str], list[int]] = {}
    for record in rounds:
        for client, kind, reason in _round_flags(record):
            reasons[client, kind] = reason
            numbers.setdefault((client, kind), []).append(record.round)
    return [ClientEvents(client, reasons[client, kind], rounds) for (client, kind), rounds in numbers.items()]


def _round_flags(record: RoundRecord) -> list[tuple[str, str, str]]:
    """Return client, kind and reason of each flag. Records without flags have diagnostics of the rule only."""
    flags = [
        (client, kind, reason)
        for client, reason_by_kind in record.flags.items()
        for kind, reason in reason_by_kind.items()
        if kind != "excluded"
    ]
    if not isinstance(record, FederationRound):
        return flags
    flagged = {(client, kind) for client, kind, _ in flags}
    return flags + [
        (client, kind, reason)
        for kind, reason in _DIAGNOSTIC_REASONS.items()
        for client in getattr(record.diagnostics, kind) or []
        if (client, kind) not in flagged
    ]


def describe_clients(
    summaries: Sequence[ClientSummary],
    flags: Sequence[ClientEvents],
    earned: Mapping[str, float] | None = None,
    rounds_absent: Mapping[str, int] | None = None,
) -> dict[str, str]:
    """Return client to its summary with what the client earned, its absences and its flags."""
    flags_by_client: dict[str, list[ClientEvents]] = {}
    for flag in flags:
        flags_by_client.setdefault(flag.client, []).append(flag)
    decimals = percent_decimals(len(summaries))
    sentences = {}
    for summary in summaries:
        client, parts = summary.client, [summary.text]
        if earned and client in earned:
            parts.append(f"earned {format_percent(earned[client], decimals)}")
        if rounds_absent and rounds_absent.get(client):
            parts.append(f"absent in {pluralise(rounds_absent[client], 'round')}")
        parts += [
            f"flagged in {'round' if len(flag.rounds) == 1 else 'rounds'} {flag.round_ranges}: {flag.reason}"
            for flag in flags_by_client.get(client, ())
        ]
        sentences[client] = "; ".join(parts)
    return sentences
