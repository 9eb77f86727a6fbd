"""The leaves of a federation's record, computed from the lines of rounds.jsonl.

Each line gives a public leaf, and one leaf for each of its clients, in client order:

    {"leaf": "round", "round": 7, "line": SHA-256 of the line, "time", "start", "model", "settings", "clients": 5}
    {"leaf": "client", "round": 7, "client": "north", "salt": "...", "weights": 0.31, "earned": 0.28, ...}

A leaf of a client has the keys of the line, with the client's own values only. The public leaf has the digest of the
whole line, which also covers the lines before. So the tree follows from the record, and the record cannot differ from
the tree.

A proof shows hashes of other leaves. A leaf could be guessed from its hash, so each has a salt: HMAC-SHA256 of the
client's name with the random salt of the line. A line without a salt was written without a signing key. It has a
public leaf only.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
from collections.abc import Mapping
from typing import Any

from celm.base.client_order import natural_sorted
from celm.base.errors import CelmError
from celm.base.files import dump_json
from celm.records.hash_chain import ChainFile
from celm.records.merkle import MerkleTree, hash_leaf

_BY_CLIENT = (
    *("keys", "received", "excluded", "weights", "client_weights", "scores", "evidence", "earned", "flags"),
    *("clipped", "metrics_excluded", "witnesses"),
)
"""Keys of a line whose values are by client."""
_CLIENT_LISTS = ("asked", "absent")
"""Keys of a line that list clients."""
_PUBLIC = ("time", "start", "model", "settings")


def make_salt() -> str:
    """Return the random salt of a line. Whoever knows it can guess at the leaves of the line's clients."""
    return secrets.token_hex(32)


def has_client_leaves(record: Mapping[str, Any]) -> bool:
    return isinstance(record.get("salt"), str)


def clients_of(record: Mapping[str, Any]) -> list[str]:
    """Return the clients that a line names, in client order."""
    names: set[str] = set()
    for key in _BY_CLIENT:
        names.update(_mapping(record.get(key)))
    for key in _CLIENT_LISTS:
        names.update(_names(record.get(key)))
    return natural_sorted(names)


def line_leaves(record: Mapping[str, Any], digest: str) -> list[bytes]:
    """Return the leaves of a line with this SHA-256: the public leaf, then one for each client."""
    clients = _client_leaves(record) if has_client_leaves(record) else []
    public = {
        "leaf": "round",
        "round": record.get("round"),
        "line": digest,
        **{key: record.get(key) for key in _PUBLIC},
        "clients": len(clients),
    }
    return [dump_json(leaf).encode() for leaf in (public, *clients)]


def _client_leaves(record: Mapping[str, Any]) -> list[dict[str, Any]]:
    leaves: dict[str, dict[str, Any]] = {
        client: {
            "leaf": "client",
            "round": record.get("round"),
            "client": client,
            "salt": _client_salt(record["salt"], client),
            **dict.fromkeys(_CLIENT_LISTS, False),
        }
        for client in clients_of(record)
    }
    for key in _CLIENT_LISTS:
        for client in _names(record.get(key)):
            leaves[client][key] = True
    for key in _BY_CLIENT:
        for client, value in _mapping(record.get(key)).items():
            leaves[client][key] = value
    for key, value in _mapping(record.get("diagnostics")).items():
        by_client = value if isinstance(value, Mapping) else dict.fromkeys(_names(value), True)
        for client in by_client.keys() & leaves.keys():
            leaves[client].setdefault("diagnostics", {})[key] = by_client[client]
    return list(leaves.values())


def _mapping(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _names(value: object) -> list[str]:
    return [name for name in value if isinstance(name, str)] if isinstance(value, list) else []


def _client_salt(salt: str, client: str) -> str:
    return hmac.new(salt.encode(), client.encode("utf-8", "surrogatepass"), hashlib.sha256).hexdigest()


class RecordTree:
    """The tree of a record, line by line."""

    def __init__(self) -> None:
        self.tree = MerkleTree()
        self.sizes = [0]
        """Number of leaves after each round; `sizes[0]` is before the first."""
        self.line_digests: list[str] = []
        self.earlier_rounds = 0
        """Number of first lines without a salt: they were written before the record was signed."""

    @classmethod
    def of_rounds(cls, rounds: ChainFile) -> RecordTree:
        made = cls()
        for record, digest in zip(rounds.records, rounds.digests, strict=True):
            made.append(record, digest)
        return made

    def append(self, record: Mapping[str, Any], digest: str) -> None:
        try:
            leaves = line_leaves(record, digest)
        except ValueError as error:  # NaN
            raise CelmError("rounds.jsonl is damaged: it has a value that is not JSON") from error
        if not has_client_leaves(record) and self.earlier_rounds == self.rounds:
            self.earlier_rounds += 1
        self.tree.extend(map(hash_leaf, leaves))
        self.sizes.append(self.tree.size)
        self.line_digests.append(digest)

    @property
    def rounds(self) -> int:
        return len(self.line_digests)

    @property
    def federation(self) -> str:
        """The digest of the first line, which names the federation."""
        return self.line_digests[0]
