"""What rules and clients remember, as JSON and tensors: how it is saved, sent and restored.

A tree is made of dataclasses, mappings with text keys, lists, tuples, tensors, numbers, text and None. Tensors
go beside the JSON under a path of their own. No pickle.
"""

from __future__ import annotations

import dataclasses
import types
import typing
from collections.abc import Mapping
from functools import cache
from typing import Any

from torch import Tensor


def pack(tree: Any, path: str, tensors: dict[str, Tensor]) -> Any:
    """The JSON of a tree; its tensors are added to `tensors` under names that begin with `path`."""
    if isinstance(tree, Tensor):
        while path in tensors:  # names may hold a slash: "a/b" of "c" and "b/c" of "a"
            path += "'"
        tensors[path] = tree
        return {"tensor": path}
    if tree is None or isinstance(tree, bool | int | float | str):
        return {"value": tree}
    if dataclasses.is_dataclass(tree) and not isinstance(tree, type):
        names = [field.name for field in dataclasses.fields(tree)]
        return {"fields": {name: pack(getattr(tree, name), f"{path}/{name}", tensors) for name in names}}
    if isinstance(tree, Mapping):
        return {"items": [[key, pack(value, f"{path}/{key}", tensors)] for key, value in tree.items()]}
    if isinstance(tree, list | tuple):
        return {"list": [pack(value, f"{path}/{i}", tensors) for i, value in enumerate(tree)]}
    raise TypeError(f"{path}: a state cannot hold a {type(tree).__name__}")


def unpack(
    packed: Any, tensors: Mapping[str, Tensor], kind: Any = None, hints: Mapping[str, Any] | None = None
) -> Any:
    """The tree again; dataclasses are made anew from `kind`, the annotated type of where they stand.

    `hints` name the types of fields of the outermost dataclass whose annotation does not tell; for a mapping
    whose values differ in type, a type for each key.
    """
    if "tensor" in packed:
        return tensors[packed["tensor"]]
    if "value" in packed:
        return packed["value"]
    if "fields" in packed:
        made = dataclass_in(kind)
        known = {**types_of(made), **(hints or {})}
        fields = packed["fields"]
        return made(**{name: unpack(value, tensors, known[name]) for name, value in fields.items()})
    if "items" in packed:
        inner = last_argument(kind)
        kinds = kind if isinstance(kind, dict) else {}
        return {key: unpack(value, tensors, kinds.get(key, inner)) for key, value in packed["items"]}
    values = [unpack(value, tensors, last_argument(kind)) for value in packed["list"]]
    return tuple(values) if typing.get_origin(kind) is tuple else values


@cache
def types_of(made: type) -> dict[str, Any]:
    """Of a dataclass's fields: found once, since annotations are text that has to be evaluated."""
    return typing.get_type_hints(made)


def dataclass_in(kind: Any) -> Any:
    """The dataclass in an annotation such as `Weights` or `Weights | None`."""
    choices = typing.get_args(kind) if isinstance(kind, types.UnionType) else (kind,)
    for choice in choices:
        if dataclasses.is_dataclass(choice):
            return choice
    raise TypeError(f"no dataclass in {kind}")


def last_argument(kind: Any) -> Any:
    """The type of the values in `Mapping[str, V]`, `list[V]` or `tuple[V, ...]`."""
    arguments = [argument for argument in typing.get_args(kind) if argument is not Ellipsis]
    return arguments[-1] if arguments else None
