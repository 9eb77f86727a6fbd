"""Names of rules, splits, models ...: loaded on use, so that listing them imports nothing heavy.

What a name stands for is a dataclass whose fields are its settings. Installed packages add names by
entry points in the group `celm.rules`, `celm.objectives`, `celm.splits`, `celm.datasets`, `celm.models`
or `celm.attacks`.
"""

from __future__ import annotations

import inspect
import json
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from functools import cached_property
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points
from typing import Any, ClassVar, Generic, TypeVar

from pydantic import ConfigDict, TypeAdapter, ValidationError

from celm.base.errors import CelmError, nearest


class Configurable:
    """Base of everything that is chosen by name: a frozen dataclass whose fields are settings."""

    __pydantic_config__: ClassVar[ConfigDict] = ConfigDict(
        extra="forbid", strict=True, arbitrary_types_allowed=True, use_attribute_docstrings=True
    )


Kind = TypeVar("Kind", bound=Configurable)


class Registry(Generic[Kind]):
    def __init__(self, kind: str, built_in: Mapping[str, str]) -> None:
        self.kind = kind
        self.built_in = dict(built_in)

    @cached_property
    def added(self) -> dict[str, EntryPoint]:
        found = entry_points(group=f"celm.{self.kind}s")
        return {entry.name: entry for entry in found if entry.name not in self.built_in}

    def names(self) -> list[str]:
        return [*self.built_in, *sorted(self.added)]

    def check(self, name: str) -> str:
        if name not in self.built_in and name not in self.added:
            raise CelmError(f"unknown {self.kind} '{name}'", nearest(name, self.names()))
        return name

    def load(self, name: str) -> type[Kind]:
        self.check(name)
        if name in self.added:
            entry = self.added[name]
            try:
                loaded: type[Kind] = entry.load()
            except Exception as error:
                reason = " ".join(f"{type(error).__name__}: {error}".split())
                raise CelmError(
                    f"{self.kind} '{name}' cannot be loaded from '{entry.value}': {reason}"
                ) from error
            return loaded
        module, _, attribute = self.built_in[name].partition(":")
        built_in: type[Kind] = getattr(import_module(module), attribute)
        return built_in

    def build(self, name: str, options: Mapping[str, Any]) -> Kind:
        """The named thing with these settings; an unknown or ill-typed one is an error that names it."""
        return build(self.load(name), options, self.kind, name)

    def summary(self, name: str) -> str:
        """First line of the docstring."""
        return (inspect.getdoc(self.load(name)) or "").partition("\n")[0]

    def settings(self, name: str) -> list[dict[str, str]]:
        """Name, default and meaning of every setting, in the order of the fields."""
        return [
            {
                "name": key,
                "default": json.dumps(field["default"]) if field.get("default") is not None else "...",
                "about": " ".join(str(field.get("description", "")).split()),
            }
            for key, field in self.schema(name).get("properties", {}).items()
        ]

    def schema(self, name: str) -> dict[str, Any]:
        """The JSON schema of the settings; what is inherited is described where it was declared."""
        kind = self.load(name)
        found = adapter(kind).json_schema(mode="serialization")
        for base in filter(is_dataclass, kind.__mro__[1:]):
            declared = adapter(base).json_schema(mode="serialization").get("properties", {})
            for key, field in found.get("properties", {}).items():
                if "description" in declared.get(key, {}):
                    field.setdefault("description", declared[key]["description"])
        return found


adapters: dict[type[Any], TypeAdapter[Any]] = {}
"""What reads the settings of a kind; made once, as that takes a hundred times as long as the reading."""


def adapter(kind: type[Any]) -> TypeAdapter[Any]:
    if kind not in adapters:
        adapters[kind] = TypeAdapter(kind)
    return adapters[kind]


def build(kind: type[Kind], options: Mapping[str, Any], table: str, name: str) -> Kind:
    try:
        # Through JSON, so that a TOML list may fill a tuple while everything else stays strict.
        built: Kind = adapter(kind).validate_json(json.dumps(options))
    except TypeError as error:  # TOML has dates, JSON has none
        raise CelmError(f"settings '{table}.*' of {table} '{name}': {error}") from error
    except ValidationError as error:
        known = [field.name for field in fields(kind) if field.init]  # type: ignore[arg-type]
        raise CelmError(*explain(error, table, known, f"{table} '{name}'")) from error
    return built


def explain(error: ValidationError, table: str, known: list[str], owner: str) -> tuple[str, str | None]:
    """What was wrong with the first setting that did not fit, and a hint."""
    first = error.errors()[0]
    key = ".".join(str(part) for part in first["loc"])
    where = f"{table}.{key}" if table else key
    if first["type"] in ("unexpected_keyword_argument", "extra_forbidden"):
        last = str(first["loc"][-1]) if first["loc"] else key
        hint = nearest(last, known) if known else f"{owner} has no settings"
        return f"unknown setting '{where}' of {owner}", hint
    if first["type"] == "value_error":  # from a __post_init__, which knows what to say
        text = first["msg"].removeprefix("Value error, ")
        return (f"setting '{where}': {text}" if key else f"{owner}: {text}"), None
    shown = repr(first.get("input"))
    value = f", not {shown[:100]}" if not isinstance(first.get("input"), dict) else ""
    return f"setting '{where}': {first['msg'][0].lower()}{first['msg'][1:]}{value}", None
