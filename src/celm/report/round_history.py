"""Summaries over the rounds: exclusions by client and reason, rounds used, and the round of the freeze."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Container, Iterable, Sequence
from dataclasses import dataclass

from celm.records.run_records import RoundRecord


@dataclass(frozen=True)
class ClientEvents:
    """The rounds in which a client was excluded or flagged for one reason."""

    client: str
    reason: str
    rounds: Sequence[int]

    @property
    def round_ranges(self) -> str:
        return format_ranges(self.rounds)


def list_exclusions(rounds: Sequence[RoundRecord]) -> list[ClientEvents]:
    """Return the rounds of each client's exclusions, by reason."""
    return group_by_client(
        [(client, reason, record.round) for record in rounds for client, reason in record.excluded.items()]
    )


def group_by_client(entries: Sequence[tuple[str, str, int]]) -> list[ClientEvents]:
    """Group entries of client, reason and round by client and reason."""
    groups: dict[tuple[str, str], list[int]] = {}
    for client, reason, round_number in entries:
        groups.setdefault((client, reason), []).append(round_number)
    return [ClientEvents(client, reason, numbers) for (client, reason), numbers in groups.items()]


def count_used_rounds(rounds: Iterable[tuple[Iterable[str], Container[str]]]) -> Counter[str]:
    """Count the rounds in which each client's update was used. A round is a pair of present and excluded clients.

    >>> count_used_rounds([(["a", "b"], ["b"]), (["a"], [])])
    Counter({'a': 2})
    """
    return Counter(client for present, excluded in rounds for client in present if client not in excluded)


def freeze_round(rounds: Sequence[RoundRecord]) -> int | None:
    """Return the first round with the final weights; None if weights changed in the last round."""
    weights_by_round = [
        (record.round, record.client_weights) for record in rounds if record.client_weights is not None
    ]
    if len(weights_by_round) < 2 or weights_by_round[-1][1] != weights_by_round[-2][1]:
        return None
    final_weights = weights_by_round[-1][1]
    return next(
        round_number
        for i, (round_number, _) in enumerate(weights_by_round)
        if all(weights == final_weights for _, weights in weights_by_round[i:])
    )


def format_ranges(numbers: Sequence[int]) -> str:
    """Return ascending numbers as ranges.

    >>> format_ranges([1, 2, 3, 5, 8, 9])
    '1–3, 5, 8–9'
    """
    # Within a run of consecutive numbers, number minus position is constant.
    runs = itertools.groupby(enumerate(numbers), key=lambda pair: pair[1] - pair[0])
    ends = [(run[0][1], run[-1][1]) for run in (list(group) for _, group in runs)]
    return ", ".join(f"{first}" if first == last else f"{first}–{last}" for first, last in ends)
