"""The answer in words: one sentence a client."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from celm.report.page import counted, percent, shown

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


def answers(
    weights: Mapping[str, float],
    evidence: Mapping[str, Sequence[float]] | None,
    classes: Sequence[str],
    excluded: Mapping[str, int] | None = None,
    rounds: Mapping[str, int] | None = None,
    own: Mapping[str, float] | None = None,
) -> list[Answer]:
    """Of every client, in the order of `weights`.

    `excluded` and `rounds` say in how many rounds it was left out and counted, `own` the accuracy of its own model.
    """
    holders = [[c for c, row in (evidence or {}).items() if row[k] > 0] for k in range(len(classes))]
    alone = len(weights) == 1  # and so the sole holder of all it holds
    # Of clients that were not probed nothing is known: a claim over all of them would be too much.
    claim = "" if evidence is None or set(weights) <= set(evidence) else " among those probed"
    told = []
    for client, weight in weights.items():
        row = None if evidence is None else evidence.get(client)
        held = None if row is None else tuple(k for k, value in enumerate(row) if value > 0)
        sole = () if alone else tuple(k for k, names in enumerate(holders) if names == [client])
        left_out = (excluded or {}).get(client, 0)
        parts = [f"{percent(weight)} of the weight"]
        if own and client in own:
            parts.append(f"its own model's accuracy is {percent(own[client])}")
        if held is not None:
            parts.append(
                f"evidence for {len(held)} of {len(classes)} classes" if held else "no evidence for any class"
            )
        elif rounds is not None and not rounds.get(client, 0) and not left_out:
            parts.append("took part in no round")
        elif evidence is not None:
            parts.append("not among those last probed")
        if sole:
            parts.append(f"sole holder of {listed([classes[k] for k in sole])}{claim}")
        if left_out:
            parts.append(f"left out in {counted(left_out, 'round')}")
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


def evidence_is(settings: Mapping[str, Any]) -> str:
    """What evidence of a rule with these settings is."""
    if settings.get("evidence") == "calibrated":
        return "how far probing raises a client's answer for a class, in units of how much it varies on noise"
    if settings.get("debias") is False:
        return "how high probing drives a client's answer for a class"
    return "what probing a client's model shows of a class beyond the global model"


def few_starts(starts: int) -> str | None:
    """What to say of an audit whose probes had too few starts to tell who holds what."""
    if starts >= ENOUGH_STARTS:
        return None
    count = f"{counted(starts, 'start')} of the probe"
    return f"{count}: too few to be sure who holds what (the default is {ENOUGH_STARTS})"
