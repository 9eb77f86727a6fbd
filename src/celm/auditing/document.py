"""The JSON document of an audit: the last round in full, and a record of each round."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from celm.auditing.findings import Findings
from celm.auditing.settings import Settings
from celm.method.weights import Weights


def document(
    how: Settings,
    found: Findings,
    records: Sequence[Mapping[str, Any]],
    weights: Weights,
    excluded: Mapping[str, str],
    notes: Mapping[str, str],
    ignored: Sequence[str],
) -> dict[str, Any]:
    return {
        "classes": list(how.classes),
        "scores": found.scores,
        "probe_standard_errors": found.probe_standard_errors,
        "weights": dict(weights.of),
        "z_scores": found.z_scores,
        "flags": found.flags,
        "holds": found.holds,
        "sole_holders": found.sole_holders,
        "evidence": found.evidence,
        "shares": found.shares,
        "distribution": found.distribution,
        "bias": found.bias,
        "movement": found.movement,
        "excluded": dict(excluded),
        "notes": dict(notes),
        "ignored": list(ignored),
        "rounds": list(records),
        "settings": how.tables(),
    }


def record(
    number: int, name: str, found: Findings | None, refused: Mapping[str, str], weights: Weights
) -> dict[str, Any]:
    return {
        "round": number,
        "name": name,
        "scores": found.scores if found else None,
        "probe_standard_errors": found.probe_standard_errors if found else None,
        "standing": dict(weights.of) if weights.of else None,
        "sole_holders": found.sole_holders if found else None,
        "flags": found.flags if found else None,
        "excluded": dict(refused),
    }
