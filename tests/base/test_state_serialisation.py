"""States as JSON and tensors: what goes in comes out."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from celm.base.state_serialisation import flatten_state, restore_state


@dataclass(frozen=True)
class Inner:
    weights: Mapping[str, float]
    inputs: Tensor | None = None


@dataclass(frozen=True)
class Outer:
    number: int
    inner: Inner
    maybe: Inner | None = None
    each: Mapping[str, Inner] = field(default_factory=dict)
    pair: tuple[int, ...] = ()
    anything: Any = None


def equal(one: Any, other: Any) -> bool:
    if isinstance(one, Tensor):
        return isinstance(other, Tensor) and one.dtype == other.dtype and torch.equal(one, other)
    if isinstance(one, dict):
        return list(one) == list(other) and all(equal(one[key], other[key]) for key in one)
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(equal, one, other))
    if isinstance(one, Inner | Outer):
        return type(one) is type(other) and equal(vars(one), vars(other))
    return type(one) is type(other) and bool(one == other)


def there_and_back(tree: Any, kind: Any = None, hints: dict[str, Any] | None = None) -> Any:
    tensors: dict[str, Tensor] = {}
    packed = json.loads(json.dumps(flatten_state(tree, "state", tensors)))
    return restore_state(packed, tensors, kind, hints)


# Names that could be mistaken for a path, to find two tensors under one name.
names = st.text(alphabet="ab/'", max_size=4) | st.text(max_size=4)
tensors = st.integers(-9, 9).map(torch.tensor) | st.lists(st.floats(width=32, allow_nan=False)).map(
    torch.tensor
)
leaves = (
    tensors
    | st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text()
)
trees = st.recursive(
    leaves,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(names, inner, max_size=4),
    max_leaves=12,
)
inners = st.builds(Inner, st.dictionaries(names, st.floats(0, 1), max_size=3), st.none() | tensors)


@given(trees)
def test_a_tree_is_the_same_again(tree: Any) -> None:
    assert equal(tree, there_and_back(tree))


@given(
    st.builds(
        Outer,
        st.integers(),
        inners,
        st.none() | inners,
        st.dictionaries(names, inners, max_size=3),
        st.lists(st.integers()).map(tuple),
    )
)
def test_dataclasses_are_made_anew_from_their_annotations(tree: Outer) -> None:
    assert equal(tree, there_and_back(tree, Outer))


def test_a_hint_says_what_an_annotation_does_not() -> None:
    tree = Outer(1, Inner({}), anything={"client-0": Inner({"a": 1.0}, torch.ones(2))})
    assert equal(tree, there_and_back(tree, Outer, {"anything": dict[str, Inner]}))
    with pytest.raises(TypeError, match="no dataclass"):
        there_and_back(tree, Outer)


@pytest.mark.parametrize("value", [{1, 2}, b"bytes", object(), Inner, 1j, lambda: None])
def test_anything_else_is_refused_by_its_place(value: Any) -> None:
    with pytest.raises(TypeError, match=r"^state/a/1: a state cannot hold a "):
        flatten_state({"a": [0, value]}, "state", {})


def test_names_with_slashes_do_not_lose_a_tensor() -> None:
    tree = {"a": {"b/c": torch.tensor(1)}, "a/b": {"c": torch.tensor(2)}}
    assert equal(tree, there_and_back(tree))
