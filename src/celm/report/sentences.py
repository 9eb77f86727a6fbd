"""The answer in words: one sentence a client."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from celm.report.page import percent, shown

ENOUGH_STARTS = 5
"""Of an audit's probes: with fewer, bounds are so wide that hardly any holding is sure."""
LISTED = 6
"""So many classes are named; the rest is counted."""


@dataclass(frozen=True)
class Answer:
    """What is said of a client; `held` and `sole` are None where nothing was probed."""

    client: str
    weight: float
    held: tuple[int, ...] | None
    """Classes with evidence."""
    sole: tuple[int, ...]
    """Classes for which nobody else has evidence."""
    excluded: int
    """Rounds in which it was left out."""
    text: str

    @property
    def sentence(self) -> str:
        return f"{shown(self.client)}: {self.text}"


def answers(
    weights: Mapping[str, float],
    evidence: Mapping[str, Sequence[float]] | None,
    classes: Sequence[str],
    excluded: Mapping[str, int] | None = None,
) -> list[Answer]:
    """Of every client, in the order of `weights`."""
    holders = [[c for c, row in (evidence or {}).items() if row[k] > 0] for k in range(len(classes))]
    # Of clients that were not probed nothing is known: a claim over all of them would be too much.
    claim = "" if evidence is None or set(weights) <= set(evidence) else " among those probed"
    told = []
    for client, weight in weights.items():
        row = None if evidence is None else evidence.get(client)
        held = None if row is None else tuple(k for k, value in enumerate(row) if value > 0)
        sole = tuple(k for k, names in enumerate(holders) if names == [client])
        parts = [f"{percent(weight)} of the weight"]
        if held is not None:
            parts.append(
                f"evidence for {len(held)} of {len(classes)} classes" if held else "no evidence for any class"
            )
        elif evidence is not None:
            parts.append("not among those last probed")
        if sole:
            parts.append(f"sole holder of {listed([classes[k] for k in sole])}{claim}")
        left_out = (excluded or {}).get(client, 0)
        if left_out:
            parts.append(f"left out in {left_out} round{'s' if left_out > 1 else ''}")
        told.append(Answer(client, weight, held, sole, left_out, "; ".join(parts)))
    return told


def listed(names: Sequence[str]) -> str:
    """
    >>> listed(["7"]), listed(["7", "8"]), listed(list("abcdefgh"))
    ('class 7', 'classes 7 and 8', 'classes a, b, c, d, e, f and 2 more')
    """
    short = [shown(name, 24) for name in names[:LISTED]]
    rest = len(names) - len(short)
    if rest:
        return f"classes {', '.join(short)} and {rest} more"
    if len(short) == 1:
        return f"class {short[0]}"
    return f"classes {', '.join(short[:-1])} and {short[-1]}"


def few_starts(starts: int) -> str | None:
    """What to say of an audit whose probes had too few starts to tell who holds what."""
    if starts >= ENOUGH_STARTS:
        return None
    count = f"{starts} start{'s' if starts > 1 else ''} of the probe"
    return f"{count}: too few to be sure who holds what (the default is {ENOUGH_STARTS})"
