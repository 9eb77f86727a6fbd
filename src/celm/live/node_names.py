"""Stable names of nodes, so that a client keeps its head, weight and record when its SuperNode restarts.

Node ids are random: without authentication, a restarted SuperNode gets a new one. The registered name
(`flwr supernode register --name`) and the registered public key stay. Without registration (no authentication,
simulation), the SuperNode makes a key when it starts, and its identity lasts until it stops.

Names are for people, and two nodes may have the same. The key identifies a node. A name is therefore assigned once and
never reused. `celm.live.state_store` saves the assigned names.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any, Protocol

from celm.base.text import printable

MAX_NODE_NAME_LENGTH = 64


class Node(Protocol):
    """A node as its framework describes it, such as `flwr.proto.node_pb2.NodeInfo`."""

    @property
    def node_id(self) -> Any:
        """An integer in Flower, the name of the site in NVFlare."""

    @property
    def name(self) -> str: ...

    @property
    def public_key(self) -> bytes: ...


def assign_names(nodes: Iterable[Node], assigned: Mapping[str, str]) -> dict[str, str]:
    """Return fingerprint to name: the names `assigned` so far, and new ones for nodes without a name.

    A node gets its registered name. If it has none, its fingerprint is its name. If the name is taken, its fingerprint
    is added.

    >>> from types import SimpleNamespace as Node
    >>> nodes = [Node(node_id=7, name="ward", public_key=b""), Node(node_id=8, name="", public_key=b"")]
    >>> names = assign_names(nodes, {})
    >>> names
    {'node-7': 'ward', 'node-8': 'node-8'}
    >>> assign_names([Node(node_id=9, name="ward", public_key=b"")], names)["node-9"]
    'ward-node-9'
    """
    wishes = {node_fingerprint(node): printable_name(node.name) for node in nodes}
    wish_counts = Counter(wishes.values())
    names = dict(assigned)
    taken = set(names.values())
    for fingerprint, wish in wishes.items():
        if fingerprint in names:
            continue
        name = wish or fingerprint
        while name in taken or (name == wish and wish_counts[wish] > 1):
            name = f"{name}-{fingerprint}"
        names[fingerprint] = name
        taken.add(name)
    return names


def node_fingerprint(node: Node) -> str:
    """Return what identifies a node: the fingerprint of its key, or its id if it has no key."""
    if not node.public_key:
        return f"node-{node.node_id}"
    return f"key-{hashlib.sha256(node.public_key).hexdigest()[:16]}"


def printable_name(name: str) -> str:
    """Return a bounded name without control characters."""
    return printable(name[:MAX_NODE_NAME_LENGTH], replacement="?").strip()
