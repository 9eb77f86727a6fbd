"""What the rounds say when read together: who was left out when and why, and when weights came to rest."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Container, Iterable, Sequence
from dataclasses import dataclass

from celm.report.reading import Weighed


@dataclass(frozen=True)
class Exclusion:
    client: str
    reason: str
    rounds: Sequence[int]

    @property
    def when(self) -> str:
        return spans(self.rounds)


def excluded(rounds: Sequence[Weighed]) -> list[Exclusion]:
    """Who was left out, in which rounds, by reason."""
    return gathered([(client, why, each.round) for each in rounds for client, why in each.excluded.items()])


def counted_in(rounds: Iterable[tuple[Iterable[str], Container[str]]]) -> Counter[str]:
    """In how many rounds each client counted; of each round who came, and who was left out of those.

    >>> counted_in([(["a", "b"], ["b"]), (["a"], [])])
    Counter({'a': 2})
    """
    return Counter(client for came, left_out in rounds for client in came if client not in left_out)


def gathered(found: Sequence[tuple[str, str, int]]) -> list[Exclusion]:
    """Client, reason and round, the rounds of one client and reason together."""
    together: dict[tuple[str, str], list[int]] = {}
    for client, reason, number in found:
        together.setdefault((client, reason), []).append(number)
    return [Exclusion(client, reason, numbers) for (client, reason), numbers in together.items()]


def frozen_after(rounds: Sequence[Weighed]) -> int | None:
    """The round after which weights did not change any more; None where they did until the end."""
    standings = [(each.round, each.standing) for each in rounds if each.standing is not None]
    if len(standings) < 2 or standings[-1][1] != standings[-2][1]:
        return None
    last = standings[-1][1]
    return next(number for i, (number, _) in enumerate(standings) if all(s == last for _, s in standings[i:]))


def spans(numbers: Sequence[int]) -> str:
    """
    >>> spans([1, 2, 3, 5, 8, 9])
    '1–3, 5, 8–9'
    """
    # Numbers that follow one another keep their distance to their places.
    runs = itertools.groupby(enumerate(numbers), key=lambda pair: pair[1] - pair[0])
    ends = [(run[0][1], run[-1][1]) for run in (list(group) for _, group in runs)]
    return ", ".join(f"{first}" if first == last else f"{first}–{last}" for first, last in ends)
