"""The usable replies of a round, and what clients report about themselves."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from celm.base.text import quote as quote_name
from celm.live.array_layout import InvalidReplyError
from celm.rules.messages import ClientUpdate

LAZY_BYTES = 4_000_000_000
"""Bytes of a round's models from which on each is decoded again on every use, and not kept."""


@dataclass(frozen=True)
class ClientReplies:
    """Usable updates in the order of the selected clients, and the reason for each exclusion."""

    updates: Mapping[str, ClientUpdate]
    excluded: Mapping[str, str]
    unexpected: list[str] = field(default_factory=list)
    """Replies that answer no message of this round."""
    witnesses: Mapping[str, str] = field(default_factory=dict, kw_only=True)
    """Client to the digest of the signed head that it returned."""


def parse_count(value: object, default: int, unit: str) -> int:
    """Return a count that a client reports, or `default`; raise `InvalidReplyError` if it is not a count."""
    if value is None:
        return default
    if not isinstance(value, int | float) or not 0 <= value < 2**53:
        raise InvalidReplyError(f"reports {quote_name(str(value), 40)} {unit}")
    return int(value)


def parse_accuracy(value: object) -> float | None:
    """Return an accuracy that a client reports, None if it reports none."""
    return float(value) if isinstance(value, int | float) and math.isfinite(value) else None
