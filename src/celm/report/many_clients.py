"""Bound the pages of large federations: which clients are shown first, and how many numbers a table has.

A page with more than `MAX_LISTED` clients begins with the distribution of weights and the outer clients. All clients
are in folded lists. Figures show groups of clients.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import TypeVar

import numpy as np

from celm.base.client_order import natural_sort_key
from celm.report.formatting import format_percent

MAX_LISTED = 30
"""Clients that a page lists and draws one by one."""
MAX_ROWS = 1000
"""Rows of a list of an audit's page: excluded clients, notes, files. The others are in audit.json and ledger.json."""
NUM_OUTER = 10
"""Heaviest, and lightest, clients that a longer list begins with."""
_MAX_TABLE_CELLS = 30_000
"""Numbers of a client x class table. A larger table has the heaviest clients only."""

_Row = TypeVar("_Row")


def sort_by_weight(weights: Mapping[str, float]) -> list[str]:
    """Return the clients, heaviest first; equal weights in natural order.

    >>> sort_by_weight({"b": 0.25, "c10": 0.5, "a": 0.25})
    ['c10', 'a', 'b']
    """
    return sorted(weights, key=lambda client: (-weights[client], natural_sort_key(client)))


def first_items(rows: Mapping[str, _Row]) -> list[tuple[str, _Row]]:
    """Return the first `MAX_ROWS` items."""
    return list(islice(rows.items(), MAX_ROWS))


def order_rows(rows: Mapping[str, _Row], order: Sequence[str]) -> dict[str, _Row]:
    """Return the rows in the order of clients; rows of other clients come last.

    >>> order_rows({"a": 1, "b": 2, "x": 3}, ["b", "c", "a"])
    {'b': 2, 'a': 1, 'x': 3}
    """
    first = {client: rows[client] for client in order if client in rows}
    return first | {client: row for client, row in rows.items() if client not in first}


def limit_rows(rows: Mapping[str, _Row], num_columns: int) -> dict[str, _Row]:
    """Return the first rows of a table, so that it has at most `_MAX_TABLE_CELLS` cells.

    >>> len(limit_rows(dict.fromkeys(range(500)), 100)), len(limit_rows(dict.fromkeys(range(500)), 10))
    (300, 500)
    """
    return dict(list(rows.items())[: max(NUM_OUTER, _MAX_TABLE_CELLS // max(1, num_columns))])


def percent_decimals(num_clients: int) -> int:
    """Return the decimals of percentages, so that an equal share has two digits at least.

    >>> [percent_decimals(count) for count in (1, 10, 100, 200, 1000, 5000)]
    [1, 1, 1, 2, 2, 3]
    """
    return max(1, math.ceil(math.log10(max(1, num_clients))) - 1)


@dataclass(frozen=True)
class OuterClients:
    """The clients that a long list begins with."""

    heaviest: Sequence[str]
    lightest: Sequence[str]
    """Lightest first."""
    distribution: str
    """The distribution of weights in words."""


def outer_clients(weights: Mapping[str, float], noun: str = "weight") -> OuterClients | None:
    """Return the outer clients; None if there are few enough to list them all."""
    if len(weights) <= MAX_LISTED:
        return None
    order = sort_by_weight(weights)
    return OuterClients(
        order[:NUM_OUTER], order[: -NUM_OUTER - 1 : -1], _describe_distribution(weights, noun)
    )


def _describe_distribution(weights: Mapping[str, float], noun: str) -> str:
    values = np.sort(np.array(list(weights.values()), dtype=np.float64))[::-1]
    decimals = percent_decimals(len(values))
    lowest, quarter, median, three_quarters, highest = (
        format_percent(float(value), decimals) for value in np.quantile(values, [0, 0.25, 0.5, 0.75, 1])
    )
    outer = format_percent(float(values[:NUM_OUTER].sum()))
    zeros = int((values <= 0).sum())
    text = (
        f"Equal {noun}s would be {format_percent(1 / len(values), decimals)} each. "
        f"The {noun}s are between {lowest} and {highest}, the median is {median}, "
        f"and half of the clients have {quarter} to {three_quarters}. "
        f"The {NUM_OUTER} heaviest clients have {outer} together."
    )
    return text + (f" {zeros} of {len(values)} clients have {noun} 0." if zeros else "")
