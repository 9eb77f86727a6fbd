"""A client is who its node is registered as, not the number of the moment, and stays so whoever is online."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from celm.base.errors import CelmError
from celm.live.node_names import MAX_NODE_NAME_LENGTH, assign_names, node_fingerprint
from celm.live.state_store import StateStore
from celm.records.federation_names import read_node_names


@dataclass(frozen=True)
class NodeInfo:
    """A node as Flower describes it."""

    node_id: int
    name: str = ""
    public_key: bytes = b""


def test_the_registered_name_comes_first_then_the_key_then_the_number() -> None:
    nodes = [
        NodeInfo(node_id=1, name="ward-3", public_key=b"k1"),
        NodeInfo(node_id=2, public_key=b"k2"),
        NodeInfo(node_id=3),
    ]
    names = StateStore(None).identify(nodes)
    assert list(names.values()) == [1, 2, 3]
    first, second, third = names
    assert (first, third) == ("ward-3", "node-3")
    assert second.startswith("key-")


def test_name_and_key_survive_a_restart_under_another_number() -> None:
    def nodes(offset: int) -> list[NodeInfo]:
        return [
            NodeInfo(node_id=1 + offset, name="a", public_key=b"x"),
            NodeInfo(node_id=2 + offset, public_key=b"k"),
        ]

    memory = StateStore(None)
    assert list(memory.identify(nodes(0))) == list(memory.identify(nodes(500)))


def test_nodes_that_share_a_name_are_told_apart_by_their_keys() -> None:
    twins = [NodeInfo(node_id=i, name="twin", public_key=bytes([i])) for i in (1, 2)]
    memory = StateStore(None)
    names = memory.identify(twins)
    assert len(names) == 2
    assert all(name.startswith("twin-key-") for name in names)
    for twin in twins:
        (alone,) = memory.identify([twin])
        assert names[alone] == twin.node_id


def test_who_has_a_name_keeps_it_when_another_comes_that_is_called_the_same() -> None:
    first, second = (NodeInfo(node_id=i, name="ward", public_key=bytes([i])) for i in (1, 2))
    memory = StateStore(None)
    assert memory.identify([first]) == {"ward": 1}
    later = f"ward-{node_fingerprint(second)}"
    assert memory.identify([second, first]) == {later: 2, "ward": 1}
    assert memory.identify([second]) == {later: 2}


def test_names_that_agree_as_far_as_they_are_shown_belong_to_different_clients() -> None:
    one, other = (
        NodeInfo(node_id=i, name="h" * MAX_NODE_NAME_LENGTH + str(i), public_key=bytes([i])) for i in (1, 2)
    )
    memory = StateStore(None)
    names = memory.identify([one, other])
    assert len(names) == 2
    (alone,) = memory.identify([other])
    assert names[alone] == 2


def test_a_name_made_to_look_like_that_of_another_takes_nothing_from_it() -> None:
    honest = NodeInfo(node_id=1, public_key=b"k")
    mimic = NodeInfo(node_id=2, name=node_fingerprint(honest), public_key=b"m")
    memory = StateStore(None)
    assert memory.identify([mimic]) == {node_fingerprint(honest): 2}
    assert set(memory.identify([mimic, honest]).values()) == {1, 2}


def test_names_are_in_the_folder_before_anybody_is_called_by_them(tmp_path: Path) -> None:
    first, second = (NodeInfo(node_id=i, name="ward", public_key=bytes([i])) for i in (1, 2))
    StateStore(tmp_path).identify([first])
    assert read_node_names(tmp_path / "names.json") == {node_fingerprint(first): "ward"}
    (tmp_path / "names.json").write_text(
        json.dumps({node_fingerprint(first): "ward", node_fingerprint(second): "ward"})
    )
    with pytest.raises(CelmError, match="is damaged"):
        read_node_names(tmp_path / "names.json")


texts = st.text(max_size=200).map(lambda text: text.encode("utf-8", "ignore").decode())
alike = st.sampled_from(
    ["", "ward", "ward ", "ward\x00", "ward?", "h" * MAX_NODE_NAME_LENGTH, "h" * 70, "node-1", "ward-node-1"]
)


@given(st.lists(texts | alike, min_size=1, max_size=6), st.booleans(), st.data())
def test_a_node_keeps_its_name_and_shares_it_with_nobody_in_any_order_of_presence(
    registered: list[str], keys: bool, data: st.DataObject
) -> None:
    nodes = [
        NodeInfo(node_id=i, name=name, public_key=bytes([i]) if keys else b"")
        for i, name in enumerate(registered)
    ]
    presence = st.lists(st.lists(st.sampled_from(nodes), unique_by=lambda node: node.node_id), max_size=6)
    names: dict[str, str] = {}
    for online in [*data.draw(presence), nodes]:
        before = names
        names = json.loads(json.dumps(assign_names(online, before)))  # as after a restart
        assert before.items() <= names.items()
        assert {node_fingerprint(node) for node in online} <= set(names)
        assert len(set(names.values())) == len(names)
    for name in names.values():
        assert name.isprintable()
        assert name
        assert len(name) <= MAX_NODE_NAME_LENGTH + 60


@given(st.sets(st.from_regex(r"[a-z]{1,8}(-[0-9]{1,2})?", fullmatch=True), max_size=6))
def test_names_of_their_own_stay_as_they_are(registered: set[str]) -> None:
    nodes = [
        NodeInfo(node_id=i, name=name, public_key=bytes([i])) for i, name in enumerate(sorted(registered))
    ]
    assert list(StateStore(None).identify(nodes)) == sorted(registered)
