"""Summarise each client's contribution in one line, and describe what evidence means."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from celm.core.class_holders import CONFIDENCE, MIN_FRACTION, ClassClaims
from celm.report.formatting import format_name, format_percent, pluralise
from celm.report.many_clients import percent_decimals, sort_by_weight
from celm.report.rank_stability import ScoreHistory

_MIN_STARTS = 5
"""Minimum starts of an audit's probe. With fewer, bounds are so wide that hardly any class counts as held."""
_MAX_LISTED_CLASSES = 6
"""Classes that are named; the others are counted."""
_NO_EVIDENCE = "no evidence for any class"


@dataclass(frozen=True)
class ClientSummary:
    """One client's part in a run or a federation."""

    client: str
    weight: float
    evidence_classes: tuple[int, ...] | None
    """Classes for which the client's last probe has evidence; None without a probe result."""
    surely: tuple[int, ...] | None
    """Classes that the client surely holds; None if the client was not tested."""
    possibly: tuple[int, ...] | None
    """Further classes, which the client possibly holds; None if the client was not tested."""
    sole_classes: tuple[int, ...]
    """Classes that the client surely holds and for which no other tested client has evidence."""
    rounds_excluded: int
    text: str


def summarise_clients(
    weights: Mapping[str, float],
    evidence: Mapping[str, Sequence[float]] | None,
    classes: Sequence[str],
    claims: ClassClaims | None = None,
    rounds_excluded: Mapping[str, int] | None = None,
    rounds_used: Mapping[str, int] | None = None,
    own_accuracy: Mapping[str, float] | None = None,
    histories: Mapping[str, ScoreHistory] | None = None,
) -> list[ClientSummary]:
    """Return one summary per client, heaviest first.

    `evidence` is that of each client's last probe, and `claims` what all probes show. `rounds_excluded` and
    `rounds_used` count rounds by client. `own_accuracy` is the accuracy of personal models. `histories` are the
    scores over the rounds.
    """
    # Clients that were not tested may hold any class, so sole evidence is that among the tested clients.
    scope = "" if claims is None or set(weights) <= set(claims.surely) else " among the clients tested"
    decimals = percent_decimals(len(weights))
    summaries = []
    for client in sort_by_weight(weights):
        weight = weights[client]
        row = None if evidence is None else evidence.get(client)
        evidence_classes = None if row is None else tuple(k for k, value in enumerate(row) if value > 0)
        surely = None if claims is None else claims.surely.get(client)
        possibly = None if claims is None else claims.possibly.get(client)
        sole_classes = () if claims is None else claims.sole_classes(client)
        num_excluded = (rounds_excluded or {}).get(client, 0)
        parts = [f"{format_percent(weight, decimals)} of the weight"]
        if own_accuracy and client in own_accuracy:
            parts.append(f"accuracy of its own model {format_percent(own_accuracy[client])}")
        if surely is not None:
            parts.append(describe_holdings(len(surely), len(possibly or ()), len(classes)))
        elif evidence_classes is not None:
            parts.append(
                f"evidence for {len(evidence_classes)} of {len(classes)} classes"
                if evidence_classes
                else _NO_EVIDENCE
            )
        elif rounds_used is not None and not rounds_used.get(client, 0) and not num_excluded:
            parts.append("did not take part in any round")
        elif evidence is not None:
            parts.append("no probe result")
        if sole_classes:
            parts.append(f"sole evidence for {join_class_names([classes[k] for k in sole_classes])}{scope}")
        if histories and client in histories:
            parts.append(histories[client].describe(decimals))
        if num_excluded:
            parts.append(f"excluded in {pluralise(num_excluded, 'round')}")
        summaries.append(
            ClientSummary(
                client,
                weight,
                evidence_classes,
                surely,
                possibly,
                sole_classes,
                num_excluded,
                "; ".join(parts),
            )
        )
    return summaries


def describe_holdings(num_surely: int, num_possibly: int, num_classes: int) -> str:
    """Say how many classes a tested client surely and possibly holds.

    >>> describe_holdings(3, 2, 10), describe_holdings(3, 0, 10)
    ('surely holds 3 of 10 classes, possibly 2 more', 'surely holds 3 of 10 classes')
    >>> describe_holdings(0, 2, 10), describe_holdings(0, 0, 10)
    ('possibly holds 2 of 10 classes', 'no evidence for any class')
    """
    if not num_surely:
        return f"possibly holds {num_possibly} of {num_classes} classes" if num_possibly else _NO_EVIDENCE
    more = f", possibly {num_possibly} more" if num_possibly else ""
    return f"surely holds {num_surely} of {num_classes} classes{more}"


def describe_test(claims: ClassClaims | None) -> str:
    """Say whether the evidence of the rounds was tested, and how."""
    if claims is None:
        return (
            "Too few rounds were probed to test which client holds which class: "
            "there must be two after the first. The evidence shown is that of the last probe, and may be noise."
        )
    return (
        f"A client surely holds a class if its evidence is above {MIN_FRACTION:.0%} of that of its best class, "
        f"tested over the probed rounds after the first at {CONFIDENCE:.0%} confidence. "
        "It has no evidence if it had none in these rounds; otherwise it possibly holds the class. "
        "A client has sole evidence for a class that it surely holds if no other tested client has evidence; "
        "others may still hold samples of it."
    )


def join_class_names(names: Sequence[str]) -> str:
    """Return the names with the noun; many names are cut short.

    >>> join_class_names(["7"]), join_class_names(["7", "8"]), join_class_names(list("abcdefgh"))
    ('class 7', 'classes 7 and 8', 'classes a, b, c, d, e, f and 2 more')
    """
    listed_names = [format_name(name, 24) for name in names[:_MAX_LISTED_CLASSES]]
    num_more = len(names) - len(listed_names)
    if num_more:
        return f"classes {', '.join(listed_names)} and {num_more} more"
    if len(listed_names) == 1:
        return f"class {listed_names[0]}"
    return f"classes {', '.join(listed_names[:-1])} and {listed_names[-1]}"


def describe_evidence(settings: Mapping[str, Any]) -> str:
    """Say what evidence means for a rule or an audit with these settings; completes "Evidence is ..."."""
    evidence = settings.get("scores_from") or settings.get("evidence")
    if evidence == "head":
        return "which part of the change of a client's last layer in a round shows that it trained on a class"
    if evidence == "calibrated":
        return "how far the probe raises a client's logit for a class, in units of its variation on noise"
    if settings.get("debias") is False:
        return "the logit that the probe reaches for a class in the client's model"
    return "how far the probe raises a client's logit for a class above the global model's mean logit"


def no_evidence_note(scores: Mapping[str, float]) -> str | None:
    """Return a note if no client of an audit has evidence: then every score is 0, and compares nobody."""
    if any(scores.values()):
        return None
    return (
        "no client has evidence for any class, so every score is 0: the scores do not compare the clients, "
        "and the weights are equal, or those of the rounds before"
    )


def few_starts_note(num_starts: int) -> str | None:
    """Return a note if an audit's probe has too few starts to test which client holds which class."""
    if num_starts >= _MIN_STARTS:
        return None
    count = f"{pluralise(num_starts, 'start')} of the probe"
    return f"{count}: too few to test which client holds which class (the default is {_MIN_STARTS})"
