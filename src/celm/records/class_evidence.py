"""What round records show about the classes of each client, by the test of `celm.core.class_holders`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from celm.core.class_holders import UNTRAINED_FLAGS, ClassClaims, RoundEvidence, class_claims


def claims_from_records(
    records: Iterable[Mapping[str, Any]], observer: str | None = None
) -> ClassClaims | None:
    """Return the claims that the probed rounds support; None with too few of them.

    `records` are lines of rounds.jsonl of a run or a live federation. With `observer`, its evidence is used in place
    of that of the rule.
    """
    rounds = []
    for record in records:
        weighting = record if observer is None else (record.get("observed") or {}).get(observer) or {}
        if evidence := weighting.get("evidence"):
            flags = record.get("flags") or {}
            rounds.append(
                RoundEvidence(
                    evidence,
                    (weighting.get("diagnostics") or {}).get("probed"),
                    [client for client, kinds in flags.items() if not UNTRAINED_FLAGS.isdisjoint(kinds)],
                )
            )
    return class_claims(rounds)
