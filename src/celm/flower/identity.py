"""Who a node is, so that a client keeps its head, weight and record when its SuperNode restarts.

A node's number is random: without authentication a restarted SuperNode gets another. The name that the operator gave
it (`flwr supernode register --name`) stays, and so does its registered public key. Where neither is registered
(no authentication, simulation) the key is one that the SuperNode made up when it started, and identity lasts as long
as it runs.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterable
from typing import Protocol

LONGEST = 64


class Node(Protocol):
    """What Flower's grid says of a node (`flwr.proto.node_pb2.NodeInfo`)."""

    node_id: int
    name: str
    public_key: bytes


def identify(nodes: Iterable[Node]) -> dict[str, int]:
    """Client name to node id: the registered name, else the key's fingerprint, else the node id.

    Nodes that share a name are told apart by their keys.

    >>> from types import SimpleNamespace as Node
    >>> identify([Node(node_id=7, name="ward-3", public_key=b""), Node(node_id=9, name="", public_key=b"")])
    {'ward-3': 7, 'node-9': 9}
    """
    found = list(nodes)
    shared = Counter(node.name for node in found)
    names: dict[str, int] = {}
    for node in found:
        name = clean(node.name) or own(node)
        if node.name and shared[node.name] > 1:
            name = f"{name}-{own(node)}"
        while name in names:
            name = f"{name}-{node.node_id}"
        names[name] = node.node_id
    return names


def own(node: Node) -> str:
    """What tells a node from all others."""
    if not node.public_key:
        return f"node-{node.node_id}"
    return f"key-{hashlib.sha256(node.public_key).hexdigest()[:16]}"


def clean(name: str) -> str:
    """A name that can be shown and kept anywhere: bounded, without control characters."""
    return "".join(char if char.isprintable() else "?" for char in name[:LONGEST]).strip()
