"""States of rules and clients as JSON and tensors, to save, send and restore them.

A state is a tree of dataclasses, mappings with text keys, lists, tuples, tensors, numbers, text and None. Each tensor
is stored beside the JSON under its path in the tree. Nothing is pickled.
"""

from __future__ import annotations

import dataclasses
import types
import typing
from collections.abc import Mapping
from functools import cache
from typing import Any

from torch import Tensor


def flatten_state(tree: Any, path: str, tensors: dict[str, Tensor]) -> Any:
    """Return the JSON of a tree, and add its tensors to `tensors` under names that begin with `path`."""
    if isinstance(tree, Tensor):
        while path in tensors:  # keys may contain a slash: "c" in "a/b" and "b/c" in "a" have one path
            path += "'"
        tensors[path] = tree
        return {"tensor": path}
    if tree is None or isinstance(tree, bool | int | float | str):
        return {"value": tree}
    if dataclasses.is_dataclass(tree) and not isinstance(tree, type):
        names = [field.name for field in dataclasses.fields(tree)]
        return {
            "fields": {name: flatten_state(getattr(tree, name), f"{path}/{name}", tensors) for name in names}
        }
    if isinstance(tree, Mapping):
        return {
            "items": [[key, flatten_state(value, f"{path}/{key}", tensors)] for key, value in tree.items()]
        }
    if isinstance(tree, list | tuple):
        return {"list": [flatten_state(value, f"{path}/{i}", tensors) for i, value in enumerate(tree)]}
    raise TypeError(f"{path}: a state cannot hold a {type(tree).__name__}")


def restore_state(
    flat: Any,
    tensors: Mapping[str, Tensor],
    type_hint: Any = None,
    field_types: Mapping[str, Any] | None = None,
) -> Any:
    """Return the tree that `flatten_state` saved. Dataclasses are rebuilt from `type_hint`, their annotated type.

    `field_types` gives the types of fields of the outermost dataclass that their annotations leave open. For a mapping
    whose values differ in type, it gives a type for each key.
    """
    if "tensor" in flat:
        return tensors[flat["tensor"]]
    if "value" in flat:
        return flat["value"]
    if "fields" in flat:
        dataclass_type = _find_dataclass(type_hint)
        hints_by_field = {**_field_type_hints(dataclass_type), **(field_types or {})}
        fields = flat["fields"]
        return dataclass_type(
            **{name: restore_state(value, tensors, hints_by_field[name]) for name, value in fields.items()}
        )
    if "items" in flat:
        value_hint = _value_type(type_hint)
        hints_by_key = type_hint if isinstance(type_hint, dict) else {}
        return {
            key: restore_state(value, tensors, hints_by_key.get(key, value_hint))
            for key, value in flat["items"]
        }
    values = [restore_state(value, tensors, _value_type(type_hint)) for value in flat["list"]]
    return tuple(values) if typing.get_origin(type_hint) is tuple else values


@cache
def _field_type_hints(dataclass_type: type) -> dict[str, Any]:
    """Return the types of the fields. Cached, because evaluating annotations is slow."""
    return typing.get_type_hints(dataclass_type)


def _find_dataclass(type_hint: Any) -> Any:
    """Return the dataclass in an annotation such as `ClientWeights` or `ClientWeights | None`."""
    choices = typing.get_args(type_hint) if isinstance(type_hint, types.UnionType) else (type_hint,)
    for choice in choices:
        if dataclasses.is_dataclass(choice):
            return choice
    raise TypeError(f"no dataclass in {type_hint}")


def _value_type(type_hint: Any) -> Any:
    """Return the type V of the values in `Mapping[str, V]`, `list[V]` or `tuple[V, ...]`."""
    arguments = [argument for argument in typing.get_args(type_hint) if argument is not Ellipsis]
    return arguments[-1] if arguments else None
