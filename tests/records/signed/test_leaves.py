"""The leaves of a line: each client's values are in its own leaf, and in no other."""

from __future__ import annotations

import hashlib
import hmac
import json
from typing import Any

from celm.records.merkle import MerkleTree, hash_leaf
from celm.records.signed.leaves import RecordTree, clients_of, line_leaves

SALT = "5a" * 32
LINE: dict[str, Any] = {
    "round": 3,
    "time": "2026-11-19T00:00:00+00:00",
    "asked": ["north", "south"],
    "absent": ["west"],
    "keys": {"north": "key-1", "south": "key-2", "west": "key-3"},
    "received": {"north": {"sha256": "ab" * 32, "samples": 7}},
    "excluded": {"south": "no reply in time"},
    "weights": {"north": 1.0},
    "client_weights": {"north": 0.5, "south": 0.25, "west": 0.25},
    "scores": {"north": 1.0},
    "evidence": {"north": [0.1, 0.7]},
    "diagnostics": {"idle": ["south"], "probed": [0, 1], "rise": {"north": 2.5}, "note": "x"},
    "earned": {"north": 0.6, "south": 0.4},
    "flags": {"south": {"idle": "did not train"}},
    "clipped": {"north": 0.8},
    "metrics": {"loss": 1.5},
    "metrics_excluded": {"south": "no reply"},
    "witnesses": {"north": "ee" * 32},
    "unexpected": ["node 7 answers no message of this round"],
    "start": "aa" * 32,
    "model": "bb" * 32,
    "settings": "cc" * 32,
    "salt": SALT,
    "previous": "dd" * 32,
}


def test_a_leaf_has_the_values_of_its_client_only() -> None:
    public, north, south, west = (json.loads(leaf) for leaf in line_leaves(LINE, "12" * 32))
    assert public == {
        "leaf": "round",
        "round": 3,
        "line": "12" * 32,
        "time": LINE["time"],
        "start": "aa" * 32,
        "model": "bb" * 32,
        "settings": "cc" * 32,
        "clients": 3,
    }
    salt = hmac.new(SALT.encode(), b"north", hashlib.sha256).hexdigest()
    assert north == {
        "leaf": "client",
        "round": 3,
        "client": "north",
        "salt": salt,
        "asked": True,
        "absent": False,
        "keys": "key-1",
        "received": {"sha256": "ab" * 32, "samples": 7},
        "weights": 1.0,
        "client_weights": 0.5,
        "scores": 1.0,
        "evidence": [0.1, 0.7],
        "diagnostics": {"rise": 2.5},
        "earned": 0.6,
        "clipped": 0.8,
        "witnesses": "ee" * 32,
    }
    assert south["excluded"] == "no reply in time"
    assert south["flags"] == {"idle": "did not train"}
    assert south["diagnostics"] == {"idle": True}
    assert (west["absent"], west["asked"]) == (True, False)
    for leaf in (north, south, west):
        others = {"north", "south", "west"} - {leaf["client"]}
        assert not any(other in json.dumps(leaf) for other in others)
        assert SALT not in json.dumps(leaf)


def test_equal_values_give_different_hashes_for_each_client_round_and_salt() -> None:
    line = {"round": 1, "asked": ["a", "b"], "salt": "00" * 32}
    salted = [line, line | {"salt": "11" * 32}]
    hashes = [hash_leaf(leaf) for record in salted for leaf in line_leaves(record, "12" * 32)[1:]]
    assert len(set(hashes)) == 4


def test_a_line_without_a_salt_has_a_public_leaf_only() -> None:
    older = {key: value for key, value in LINE.items() if key != "salt"}
    assert [json.loads(leaf)["leaf"] for leaf in line_leaves(older, "12" * 32)] == ["round"]


def test_the_tree_of_a_record_has_the_leaves_of_its_lines_in_order() -> None:
    older = {key: value for key, value in LINE.items() if key != "salt"}
    lines = [(older, "01" * 32), (LINE, "02" * 32), (older, "03" * 32)]
    tree = RecordTree()
    for line, digest in lines:
        tree.append(line, digest)
    assert tree.sizes == [0, 1, 5, 6]
    assert tree.earlier_rounds == 1  # the third line is not earlier than the first signed one
    assert tree.federation == "01" * 32
    leaves = [leaf for line, digest in lines for leaf in line_leaves(line, digest)]
    assert tree.tree.root() == MerkleTree(map(hash_leaf, leaves)).root()


def test_damaged_values_of_a_line_are_not_clients() -> None:
    assert clients_of({"asked": 3, "absent": [1, None, "a"], "weights": "x", "flags": ["b"]}) == ["a"]
