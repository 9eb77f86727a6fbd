"""What a live federation logs about a round: weights in one line, and each new flag as a warning."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from logging import INFO, WARNING
from typing import Any

from celm.federation.flags import Flags
from celm.live.logger import log
from celm.live.node_names import printable_name
from celm.operations.alerts import Event

_MAX_LISTED_CLIENTS = 20
"""Further clients are counted, not listed."""
_NUMBERS = re.compile(r"0x[0-9a-f]+|[-+]?\d[\d.]*(?:e[-+]?\d+)?", re.IGNORECASE)


def log_weights(client_weights: Mapping[str, float]) -> None:
    """Log the weight of each client, heaviest first, in one line."""
    heaviest_first = sorted(client_weights, key=lambda name: -client_weights[name])
    listed = [
        f"{printable_name(name)} {100 * client_weights[name]:.1f} %"
        for name in heaviest_first[:_MAX_LISTED_CLIENTS]
    ]
    others = len(heaviest_first) - len(listed)
    log(INFO, "\t└──> Weights: %s%s", ", ".join(listed), f" and {others} more" if others else "")


@dataclass
class FlagLog:
    """Logs a flag when it appears or its reason changes, and once when it is gone.

    Reasons are compared without their numbers: a clip factor that differs in each round is not a new reason.
    """

    current: dict[str, dict[str, str]] = field(default_factory=dict)
    """Client to kind of flag to reason without numbers, in the last round that it took part in."""

    @classmethod
    def from_records(cls, records: Iterable[Mapping[str, Any]]) -> FlagLog:
        """Return the log after the rounds of a record, for a server that resumes."""
        current: dict[str, dict[str, str]] = {}
        for line in records:
            flags = line.get("flags", {})
            current |= {client: _without_numbers(flags.get(client, {})) for client in line["asked"]}
        return cls(current)

    def update(self, round_number: int, flags: Flags, selected: Iterable[str]) -> list[Event]:
        """Log and return what is new for the clients of a round. Clients that were not selected stay as they were."""
        events: list[Event] = []
        for client in selected:
            before, now = self.current.get(client, {}), _without_numbers(flags.get(client, {}))
            for kind in sorted(kind for kind in now if before.get(kind) != now[kind]):
                name, reason = printable_name(client), flags[client][kind]
                text = f"round {round_number}: {name} is flagged: {reason} ({kind})"
                events.append(Event("flag", round_number, text, name, kind, reason))
                log(WARNING, "%s", text, extra={"event_keys": events[-1].to_json()})
            for kind in sorted(before.keys() - now.keys()):
                log(INFO, "round %d: %s is no longer flagged: %s", round_number, printable_name(client), kind)
            self.current[client] = now
        return events


def _without_numbers(reasons: Mapping[str, str]) -> dict[str, str]:
    """Return kind of flag to reason, with all numbers replaced.

    >>> _without_numbers({"clipped": "its update was clipped to 1.2e-05 % of its norm"})
    {'clipped': 'its update was clipped to # % of its norm'}
    """
    return {kind: _NUMBERS.sub("#", reason) for kind, reason in reasons.items()}
