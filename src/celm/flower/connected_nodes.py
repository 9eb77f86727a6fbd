"""Connected nodes: wait for enough of them, for a bounded time, and size the sample."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from logging import INFO

from flwr.serverapp import Grid

from celm.base.errors import CelmError
from celm.live.logger import log
from celm.live.node_names import Node

IdentifyFn = Callable[[Iterable[Node]], dict[str, int]]
"""Takes the nodes of the grid and returns client name to node id."""


def check_sampling(fraction_train: float, fraction_evaluate: float, min_train_nodes: int) -> None:
    """Raise an error if a fraction is not one, or if no client would train."""
    for key, fraction in (("fraction_train", fraction_train), ("fraction_evaluate", fraction_evaluate)):
        if not 0 <= fraction <= 1:
            raise CelmError(f"{key} must be between 0 and 1, not {fraction}")
    if not fraction_train or min_train_nodes < 1:
        raise CelmError("no client would train", "set fraction_train and min_train_nodes above 0")


def sample_size(num_connected: int, fraction: float, minimum: int) -> int:
    """Return how many of the connected nodes Flower samples.

    >>> sample_size(10, 0.25, 2), sample_size(3, 0.25, 2)
    (2, 2)
    """
    return max(int(num_connected * fraction), minimum)


def wait_for_enough_nodes(
    grid: Grid, identify: IdentifyFn, fraction: float, minimum: int, available: int, timeout: float
) -> dict[str, int]:
    """Return client to node id once enough nodes are connected; raise after `timeout` seconds."""
    deadline = time.monotonic() + timeout
    announced = -1
    while True:
        nodes = identify(grid.get_nodes())
        needed = max(available, sample_size(len(nodes), fraction, minimum))
        if len(nodes) >= needed:
            return nodes
        remaining = deadline - time.monotonic()
        if remaining <= 0:
            raise CelmError(
                f"{len(nodes)} of at least {needed} nodes connected within {timeout:g} s",
                "start more SuperNodes, or lower min_available_nodes",
            )
        if len(nodes) != announced:
            waiting = "Waiting for nodes: %d connected, %d needed, at most %.0f s"
            log(INFO, waiting, len(nodes), needed, remaining)
            announced = len(nodes)
        time.sleep(min(1.0, remaining))
