"""Components chosen by name: rules, objectives, splits, datasets, models, attacks, filters, aggregators.

A component is a frozen dataclass whose fields are its settings. It is imported on first use, so listing names imports
nothing heavy. Installed packages add names by entry points in the group `celm.KINDs`: `celm.rules`,
`celm.objectives`, `celm.splits`, `celm.datasets`, `celm.models`, `celm.attacks`, `celm.filters`, `celm.aggregators`.
"""

from __future__ import annotations

import ast
import inspect
import json
import sys
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from functools import cached_property
from importlib import import_module
from importlib.abc import InspectLoader
from importlib.metadata import EntryPoint, entry_points
from importlib.util import find_spec
from typing import Any, ClassVar, Generic, TypeVar

from pydantic import ConfigDict, TypeAdapter, ValidationError

from celm.base.errors import CelmError, suggest_name
from celm.base.renames import new_setting_name, renamed_hint
from celm.base.text import format_exception, single_line, truncate


class Configurable:
    """Base class of all components. A subclass is a frozen dataclass whose fields are settings."""

    __pydantic_config__: ClassVar[ConfigDict] = ConfigDict(
        extra="forbid", strict=True, arbitrary_types_allowed=True, use_attribute_docstrings=True
    )


UNSET = "..."
"""Default of a setting that has no value, as text."""

Component = TypeVar("Component", bound=Configurable)


class Registry(Generic[Component]):
    """The components of one kind, such as `rule`. `builtins` maps a name to `module:class`."""

    def __init__(self, kind: str, builtins: Mapping[str, str]) -> None:
        self.kind = kind
        self.builtins = dict(builtins)
        self.registered: dict[str, type[Component]] = {}
        """The components that this process registered; other processes do not have them."""
        self.objects: dict[tuple[str, str], Any] = {}
        """Name and digest to what this process was given in place of a name (`celm.experiment.objects`)."""

    @cached_property
    def plugins(self) -> dict[str, EntryPoint]:
        """Return the components of installed packages; a plug-in cannot replace a built-in name."""
        entries = entry_points(group=f"celm.{self.kind}s")
        return {entry.name: entry for entry in entries if entry.name not in self.builtins}

    def names(self) -> list[str]:
        """Return all names, built-in ones first."""
        return [*self.builtins, *sorted({*self.plugins, *self.registered})]

    def register(self, name: str, component: type[Component]) -> None:
        """Add a component of this process. A built-in name cannot be replaced; a name of your own can."""
        if name in self.builtins:
            raise CelmError(
                f"cannot register {self.kind} '{name}': celm has one of this name", "choose another name"
            )
        self.registered[name] = component

    def check(self, name: str) -> str:
        """Return `name`, or raise an error that suggests the nearest valid name."""
        if name not in self.names():
            raise CelmError(f"unknown {self.kind} '{name}'", suggest_name(name, self.names()))
        return name

    def load(self, name: str, digest: str | None = None) -> type[Component]:
        """Import and return the component class of a name; with a digest, return the object of this process."""
        if digest is not None:
            given: type[Component] = self._load_object(name, digest)
            return given
        self.check(name)
        if name in self.registered:
            return self.registered[name]
        if name in self.plugins:
            entry = self.plugins[name]
            try:
                plugin: type[Component] = entry.load()
            except Exception as error:
                raise CelmError(
                    f"{self.kind} '{name}' cannot be loaded from '{entry.value}': {format_exception(error)}"
                ) from error
            return plugin
        module, _, attribute = self.builtins[name].partition(":")
        component: type[Component] = getattr(import_module(module), attribute)
        return component

    def _load_object(self, name: str, digest: str) -> Any:
        if (name, digest) not in self.objects:
            raise CelmError(
                f"{self.kind} '{name}' was given as an object, which this process does not have",
                "give the same object again, in Python",
            )
        return self.objects[name, digest]

    def build(self, name: str, options: Mapping[str, Any], digest: str | None = None) -> Component:
        """Return the named component with these settings. An unknown or ill-typed setting is an error that names it."""
        return build_component(self.load(name, digest), options, self.kind, name)

    def refuse_renamed(self, name: str, options: Mapping[str, Any]) -> None:
        """Raise an error if a setting has its old name. The component is imported only if a setting may have one."""
        for key in options:
            new_name = new_setting_name(f"{self.kind}.{key}")
            if new_name is None:
                continue
            setting_names = _setting_names(self.load(name))
            if key not in setting_names and new_name.rpartition(".")[2] in setting_names:
                raise CelmError(
                    f"unknown setting '{self.kind}.{key}' of {self.kind} '{name}'", renamed_hint(new_name)
                )

    def summary(self, name: str) -> str:
        """Return the first line of the component's docstring. A built-in component is not imported for it."""
        module, _, attribute = self.builtins.get(name, "").partition(":")
        docstring = _read_docstring(module, attribute) if module and module not in sys.modules else None
        return (docstring or inspect.getdoc(self.load(name)) or "").partition("\n")[0]

    def settings(self, name: str) -> list[dict[str, str]]:
        """Return name, default and description of every setting, in the order of the fields."""
        return [
            {
                "name": key,
                "default": json.dumps(field["default"]) if field.get("default") is not None else UNSET,
                "about": single_line(str(field.get("description", ""))),
            }
            for key, field in self.schema(name).get("properties", {}).items()
        ]

    def schema(self, name: str) -> dict[str, Any]:
        """Return the JSON schema of the settings. An inherited setting keeps the description of its base class."""
        component_type = self.load(name)
        schema = _type_adapter(component_type).json_schema(mode="serialization")
        for base in filter(is_dataclass, component_type.__mro__[1:]):
            declared = _type_adapter(base).json_schema(mode="serialization").get("properties", {})
            for key, field in schema.get("properties", {}).items():
                if "description" in declared.get(key, {}):
                    field.setdefault("description", declared[key]["description"])
        return schema


def _read_docstring(module: str, class_name: str) -> str | None:
    """Read a class's own docstring from the source of its module, whose imports may take seconds."""
    spec = find_spec(module)
    source = spec.loader.get_source(module) if spec and isinstance(spec.loader, InspectLoader) else None
    classes = (node for node in ast.parse(source or "").body if isinstance(node, ast.ClassDef))
    return next((ast.get_docstring(node) for node in classes if node.name == class_name), None)


_type_adapters: dict[type[Any], TypeAdapter[Any]] = {}
"""Validators by class. Building one takes a hundred times as long as using it."""


def _type_adapter(component_type: type[Any]) -> TypeAdapter[Any]:
    if component_type not in _type_adapters:
        _type_adapters[component_type] = TypeAdapter(component_type)
    return _type_adapters[component_type]


def build_component(
    component_type: type[Component], options: Mapping[str, Any], table: str, name: str
) -> Component:
    """Return a component with validated settings; errors name the setting as `table.key`."""
    try:
        # Validate JSON, because a list in JSON is valid for a tuple while all other types stay strict.
        component: Component = _type_adapter(component_type).validate_json(json.dumps(options))
    except TypeError as error:  # TOML has dates, JSON does not
        raise CelmError(f"settings '{table}.*' of {table} '{name}': {error}") from error
    except ValidationError as error:
        raise CelmError(
            *describe_validation_error(error, table, _setting_names(component_type), f"{table} '{name}'")
        ) from error
    return component


def _setting_names(component_type: type[Any]) -> list[str]:
    return [field.name for field in fields(component_type) if field.init]


def describe_validation_error(
    error: ValidationError, table: str, setting_names: list[str], owner: str
) -> tuple[str, str | None]:
    """Return a message and a hint for the first setting that is not valid."""
    first = error.errors()[0]
    key = ".".join(str(part) for part in first["loc"])
    setting_path = f"{table}.{key}" if table else key
    if first["type"] in ("unexpected_keyword_argument", "extra_forbidden"):
        setting = str(first["loc"][-1]) if first["loc"] else key
        hint = suggest_name(setting, setting_names) if setting_names else f"{owner} has no settings"
        new_name = new_setting_name(setting_path)
        if new_name and (len(first["loc"]) > 1 or new_name.rpartition(".")[2] in setting_names):
            hint = renamed_hint(new_name)
        return f"unknown setting '{setting_path}' of {owner}", hint
    if first["type"] == "value_error":  # raised by a __post_init__ with its own message
        text = first["msg"].removeprefix("Value error, ")
        return (f"setting '{setting_path}': {text}" if key else f"{owner}: {text}"), None
    value = "" if isinstance(first.get("input"), dict) else f", not {truncate(repr(first.get('input')), 100)}"
    return f"setting '{setting_path}': {first['msg'][0].lower()}{first['msg'][1:]}{value}", None
