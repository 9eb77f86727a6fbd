"""A map of clients and classes: what is sure, what is possible, and for what there is no evidence."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from celm.core.class_holders import ClassClaims
from celm.report.many_clients import limit_rows, order_rows

SURE, SOLE, POSSIBLE, NONE = "S", "S*", "P", "–"
"""Marks of the cells. They are text, so that the map can be read aloud, printed and searched."""


@dataclass(frozen=True)
class ClassCount:
    """How many clients hold one class."""

    name: str
    surely: int
    possibly: int
    none: int


@dataclass(frozen=True)
class ClassMap:
    """The map of the tested clients."""

    classes: Sequence[str]
    rows: Mapping[str, Sequence[str]]
    """Client to one mark per class. A very long map has the heaviest clients only."""
    counts: Sequence[ClassCount]
    """Counts over all tested clients."""
    untested: Sequence[str]
    """Clients that were not tested: they may hold any class."""
    num_tested: int


def claims_map(claims: ClassClaims | None, classes: Sequence[str], order: Sequence[str]) -> ClassMap | None:
    """Return the map of a run or a federation; None if nothing was tested."""
    if claims is None:
        return None
    sole = {client: claims.sole_classes(client) for client in claims.surely}
    return _make_map(classes, order, claims.surely, claims.possibly, sole)


def audit_map(
    classes: Sequence[str],
    order: Sequence[str],
    holds: Mapping[str, Sequence[str]] | None,
    possibly: Mapping[str, Sequence[str]] | None,
    sole_holders: Mapping[str, str],
) -> ClassMap | None:
    """Return the map of an audit, whose document has classes by name; None if nothing was tested."""
    if holds is None:
        return None
    index = {name: k for k, name in enumerate(classes)}
    sole: dict[str, list[int]] = {}
    for name, client in sole_holders.items():
        sole.setdefault(client, []).append(index[name])
    return _make_map(
        classes,
        order,
        {client: [index[name] for name in names] for client, names in holds.items()},
        {client: [index[name] for name in names] for client, names in (possibly or {}).items()},
        sole,
    )


def _make_map(
    classes: Sequence[str],
    order: Sequence[str],
    surely: Mapping[str, Collection[int]],
    possibly: Mapping[str, Collection[int]],
    sole: Mapping[str, Collection[int]],
) -> ClassMap:
    rows = {
        client: _mark_classes(len(classes), held, possibly.get(client, ()), sole.get(client, ()))
        for client, held in order_rows(surely, order).items()
    }
    columns = list(zip(*rows.values(), strict=True))
    counts = [
        ClassCount(name, sum(m in (SURE, SOLE) for m in marks), marks.count(POSSIBLE), marks.count(NONE))
        for name, marks in zip(classes, columns, strict=True)
    ]
    untested = [client for client in order if client not in surely]
    return ClassMap(classes, limit_rows(rows, len(classes)), counts, untested, len(rows))


def _mark_classes(
    num_classes: int, surely: Collection[int], possibly: Collection[int], sole: Collection[int]
) -> list[str]:
    """Return the marks of one client.

    >>> _mark_classes(4, {0, 1}, {2}, {1})
    ['S', 'S*', 'P', '–']
    """
    return [
        SOLE if k in sole else SURE if k in surely else POSSIBLE if k in possibly else NONE
        for k in range(num_classes)
    ]
