"""A client is who its node is registered as, not the number of the moment."""

from __future__ import annotations

import pytest

pytest.importorskip("flwr", reason="Flower is not installed: pip install 'celm[flower]'")

from flwr.proto.node_pb2 import NodeInfo
from hypothesis import given
from hypothesis import strategies as st

from celm.flower.identity import LONGEST, identify


def test_the_registered_name_comes_first_then_the_key_then_the_number() -> None:
    nodes = [
        NodeInfo(node_id=1, name="ward-3", public_key=b"k1"),
        NodeInfo(node_id=2, public_key=b"k2"),
        NodeInfo(node_id=3),
    ]
    names = identify(nodes)
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

    assert list(identify(nodes(0))) == list(identify(nodes(500)))


def test_nodes_that_share_a_name_are_told_apart_by_their_keys() -> None:
    names = identify([NodeInfo(node_id=i, name="twin", public_key=bytes([i])) for i in (1, 2)])
    assert len(names) == 2
    assert all(name.startswith("twin-key-") for name in names)


@given(st.lists(st.tuples(st.text(max_size=200), st.binary(max_size=4)), max_size=8))
def test_every_node_has_one_bounded_printable_name(given_names: list[tuple[str, bytes]]) -> None:
    text = [(name.encode("utf-8", "ignore").decode(), key) for name, key in given_names]
    nodes = [NodeInfo(node_id=i, name=name, public_key=key) for i, (name, key) in enumerate(text)]
    names = identify(nodes)
    for name in names:
        assert name.isprintable()
        assert name
        assert len(name) <= LONGEST + 60
    assert sorted(names.values()) == list(range(len(nodes)))
