"""names.json of a federation: fingerprint of each node's key to the client's name, checked against the record.

Each line of the record has the fingerprints, as `keys`: client to fingerprint. Giving the key of one client to another
is therefore detected. A client may get a key that no client had before; the next line then names the new key.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from celm.base.errors import CelmError
from celm.base.json_files import read_json


def read_node_names(path: Path) -> dict[str, str]:
    """Return the names assigned so far."""
    names = read_json(path) if path.exists() else {}
    if not all(isinstance(name, str) for name in names.values()) or len(set(names.values())) < len(names):
        raise CelmError(f"{path} is damaged: nodes and names do not match one to one")
    return names


def recorded_keys(records: Iterable[Mapping[str, Any]]) -> dict[str, str]:
    """Return client to the fingerprint that the record named last."""
    keys: dict[str, str] = {}
    for record in records:
        line_keys = record.get("keys")
        if isinstance(line_keys, dict):
            keys |= line_keys
    return keys


def check_names(names: Mapping[str, str], keys: Mapping[str, str], path: Path) -> None:
    """Raise CelmError if names.json at `path` gives the key of one client to another.

    >>> check_names({"key-1": "north", "key-3": "south"}, {"north": "key-1", "south": "key-2"}, Path("names.json"))
    """
    owners = {fingerprint: client for client, fingerprint in keys.items()}
    for fingerprint, name in names.items():
        owner = owners.get(fingerprint, name)
        if owner != name:
            raise CelmError(
                f"{path} was changed: {fingerprint} is named '{name}', but in rounds.jsonl it is '{owner}'",
                "restore names.json: a key that is in the record keeps its name",
            )


def restore_names(names: Mapping[str, str], keys: Mapping[str, str]) -> dict[str, str]:
    """Return `names` with the clients of the record that are missing.

    >>> restore_names({"key-1": "north"}, {"north": "key-1", "south": "key-2"})
    {'key-1': 'north', 'key-2': 'south'}
    """
    known = set(names.values())
    return {**names, **{key: client for client, key in keys.items() if client not in known}}
