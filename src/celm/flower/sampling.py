"""Which nodes take part in a round, and a bounded wait for enough of them."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from logging import INFO

from flwr.serverapp import Grid
from flwr.supercore import log

from celm.base.errors import CelmError
from celm.flower.identity import Node

Identify = Callable[[Iterable[Node]], dict[str, int]]
"""Nodes as the grid lists them to client name -> node id."""


def sample_size(connected: int, fraction: float, minimum: int) -> int:
    """As Flower counts it.

    >>> sample_size(10, 0.25, 2), sample_size(3, 0.25, 2)
    (2, 2)
    """
    return max(int(connected * fraction), minimum)


def connected_nodes(
    grid: Grid, identify: Identify, fraction: float, minimum: int, available: int, patience: float
) -> dict[str, int]:
    """Client to node id of all that are connected, once they are enough; an error after `patience` seconds."""
    end = time.monotonic() + patience
    said = -1
    while True:
        nodes = identify(grid.get_nodes())
        needed = max(available, sample_size(len(nodes), fraction, minimum))
        if len(nodes) >= needed:
            return nodes
        left = end - time.monotonic()
        if left <= 0:
            raise CelmError(
                f"{len(nodes)} of at least {needed} nodes connected within {patience:g} s",
                "start more SuperNodes, or lower min_available_nodes",
            )
        if len(nodes) != said:
            log(INFO, "Waiting for nodes: %d connected, %d needed, at most %.0f s", len(nodes), needed, left)
            said = len(nodes)
        time.sleep(min(1.0, left))
