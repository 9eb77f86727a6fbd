"""Who a node is, so that a client keeps its head, weight and record when its SuperNode restarts.

A node's number is random: without authentication a restarted SuperNode gets another. The name that the operator gave
it (`flwr supernode register --name`) stays, and so does its registered public key. Where neither is registered
(no authentication, simulation) the key is one that the SuperNode made up when it started, and identity lasts as long
as it runs.

Names are for people, and two nodes may have the same; what tells nodes apart is the key. So a name is given once: it
stays with its node, and goes to no other, whoever is online. Who gives names keeps them (`celm.flower.state`).
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Protocol

LONGEST = 64


class Node(Protocol):
    """What Flower's grid says of a node (`flwr.proto.node_pb2.NodeInfo`)."""

    node_id: int
    name: str
    public_key: bytes


def named(nodes: Iterable[Node], given: Mapping[str, str]) -> dict[str, str]:
    """The names `given` so far, by the nodes' marks, and those of the nodes that have none yet.

    A node gets the name it is registered under. Where it has none its mark is its name; where others are called the
    same its mark is added.

    >>> from types import SimpleNamespace as Node
    >>> nodes = [Node(node_id=7, name="ward", public_key=b""), Node(node_id=8, name="", public_key=b"")]
    >>> names = named(nodes, {})
    >>> names
    {'node-7': 'ward', 'node-8': 'node-8'}
    >>> named([Node(node_id=9, name="ward", public_key=b"")], names)["node-9"]
    'ward-node-9'
    """
    found = {mark(node): clean(node.name) for node in nodes}
    shared = Counter(found.values())
    names = dict(given)
    taken = set(names.values())
    for own, wish in found.items():
        if own in names:
            continue
        name = wish or own
        while name in taken or (name == wish and shared[wish] > 1):
            name = f"{name}-{own}"
        names[own] = name
        taken.add(name)
    return names


def mark(node: Node) -> str:
    """What tells a node from all others: its key's fingerprint, or its number where it has no key."""
    if not node.public_key:
        return f"node-{node.node_id}"
    return f"key-{hashlib.sha256(node.public_key).hexdigest()[:16]}"


def clean(name: str) -> str:
    """A name that can be shown and kept anywhere: bounded, without control characters."""
    return "".join(char if char.isprintable() else "?" for char in name[:LONGEST]).strip()
