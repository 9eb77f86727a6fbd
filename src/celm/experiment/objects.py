"""Objects in place of names: a rule, a model, data, ... of this process, as in `Experiment(rule=MyRule(power=2))`.

A component is a frozen dataclass, so its settings are saved like those of a component with a name. Its code is not
saved, nor are data and modules. The settings then have a digest of the object, so that another object is not mistaken
for it. A run folder with such a digest can be read by everyone, and continued by a process with the same object.
An object that can be imported by a name is saved by that name.
"""

from __future__ import annotations

import re
import sys
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import MISSING, fields
from importlib import import_module
from importlib.machinery import PathFinder
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel

from celm.attacks import attacks
from celm.base.code_digest import code_digest, short_digest
from celm.base.errors import CelmError, suggest_name
from celm.base.registry import Configurable, Registry
from celm.base.text import quote
from celm.data.registry import datasets, splits
from celm.models.registry import models
from celm.objectives import objectives
from celm.rules import rules
from celm.rules.robust import aggregators, filters

if TYPE_CHECKING:
    from celm.experiment.component_config import ComponentConfig
    from celm.experiment.config import Experiment

REGISTRIES: dict[str, Registry[Any]] = {
    "dataset": datasets,
    "split": splits,
    "model": models,
    "rule": rules,
    "objective": objectives,
    "attack": attacks,
    "filter": filters,
    "aggregator": aggregators,
}
"""Table of an experiment to the registry of its components."""
_BASES = {
    "dataset": "celm.data.dataset:DatasetSource",
    "split": "celm.data.split:Split",
    "model": "celm.models.registry:ModelFactory",
    "rule": "celm.rules.rule:Rule",
    "objective": "celm.objectives.objective:Objective",
    "attack": "celm.attacks.attack:Attack",
    "filter": "celm.rules.robust.filter:Filter",
}
"""Table to the base class of its components."""


def name_objects(tables: Mapping[str, Any]) -> dict[str, Any]:
    """Return the tables of an experiment with names and settings in place of objects, which this process remembers."""
    named = dict(tables)
    for table in REGISTRIES:
        if table in named:
            named[table] = name_object(table, named[table])
    if isinstance(observers := named.get("observe"), list | tuple):
        named["observe"] = [name_object("rule", observer) for observer in observers]
    return named


def name_object(table: str, value: Any) -> Any:
    """Return name and settings of an object; return names, tables of settings and wrong values unchanged."""
    if value is None or isinstance(value, str | int | float | BaseModel):
        return _mark_registered(table, value)
    if isinstance(value, Mapping) and "name" in value:
        options = {key: option for key, option in value.items() if key != "name"}
        if value["name"] is None or isinstance(value["name"], str):
            return _mark_registered(table, dict(value))
        named = name_object(table, value["name"])
        return {**(named if isinstance(named, dict) else {"name": named}), **options}
    if isinstance(value, Configurable) or (isinstance(value, type) and issubclass(value, Configurable)):
        return _name_component(table, value)
    if (
        table == "dataset"
        and (not isinstance(value, Mapping) or "train" in value)
        and not hasattr(value, "__fspath__")
    ):
        return _name_data(value)
    if table == "model" and callable(value):
        return _name_model(value)
    return value


def _mark_registered(table: str, value: Any) -> Any:
    """Add the digest of a component that this process registered (`celm.register`)."""
    name = value.get("name") if isinstance(value, dict) else value
    component = REGISTRIES[table].registered.get(name) if isinstance(name, str) else None
    if component is None or (isinstance(value, dict) and "object" in value):
        return value
    digest = _remember(table, str(name), code_digest(component), component)
    return {**(value if isinstance(value, dict) else {"name": name}), "object": digest}


def _remember(table: str, name: str, digest: str, target: Any) -> str:
    REGISTRIES[table].objects[name, digest] = target
    return digest


def _name_component(table: str, value: Any) -> dict[str, Any]:
    cls = value if isinstance(value, type) else type(value)
    if table in _BASES:
        module, _, attribute = _BASES[table].partition(":")
        base = getattr(import_module(module), attribute)
        if not issubclass(cls, base):
            raise CelmError(
                f"{table}: {cls.__name__} is not a {attribute}",
                f"its base class must be {module}.{attribute}",
            )
    options = {} if isinstance(value, type) else _changed_fields(table, value)
    registry = REGISTRIES[table]
    path = f"{cls.__module__}:{cls.__qualname__}"
    saved_names = {**registry.builtins, **{name: entry.value for name, entry in registry.plugins.items()}}
    for name, known_path in saved_names.items():
        if path == known_path:
            return {"name": name, **options}
    name = next(
        (name for name, known in registry.registered.items() if known is cls), snake_case(cls.__name__)
    )
    if name in saved_names:
        raise CelmError(f"{table}: celm has a {registry.kind} '{name}'", f"rename the class {cls.__name__}")
    return {"name": name, "object": _remember(table, name, code_digest(cls), cls), **options}


def _changed_fields(table: str, component: Any) -> dict[str, Any]:
    """Return the settings of a component that differ from their defaults."""
    options = {}
    for field in fields(component):
        value = getattr(component, field.name)
        default = field.default if field.default_factory is MISSING else field.default_factory()
        if not field.init or (default is not MISSING and type(value) is type(default) and value == default):
            continue
        if value is None:
            raise CelmError(f"setting '{table}.{field.name}' is None, which a run folder cannot save")
        options[field.name] = value
    return options


def snake_case(name: str) -> str:
    """Return the name of a class as that of a component.

    >>> snake_case("MyRule"), snake_case("<lambda>")
    ('my_rule', 'lambda')
    """
    words = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).lower()
    return re.sub(r"\W+", "_", words).strip("_")


def _name_data(value: Any) -> Any:
    from celm.data.in_memory import in_memory_source, is_data

    if not is_data(value):
        return value
    name, digest, source = in_memory_source(value)
    return {"name": name, "object": _remember("dataset", name, digest, source)}


def _name_model(value: Any) -> Any:
    from torch import nn

    if isinstance(value, nn.Module):
        from celm.models.state_dict import get_state

        state = [
            part for key, tensor in get_state(value).items() for part in (key, tensor.cpu().numpy().tobytes())
        ]
        digest = short_digest(code_digest(value), repr(value), *state)
        name = snake_case(type(value).__name__)
    else:
        if path := _importable_path(value):
            return path
        digest = code_digest(value)
        name = snake_case(getattr(getattr(value, "func", value), "__name__", type(value).__name__))
    if name in models.builtins:
        name = f"own_{name}"
    return {"name": name, "object": _remember("model", name, digest, value)}


def _importable_path(target: Any) -> str | None:
    """Return `module:name` if other processes with the same `sys.path` can import the function or class, else None."""
    module, name = getattr(target, "__module__", None), getattr(target, "__qualname__", None)
    if not module or not name or module == "__main__" or "<" in name:
        return None
    location: Sequence[str] | None = None
    origin, parent = None, ""
    for part in module.split("."):
        parent = f"{parent}.{part}".removeprefix(".")
        spec = PathFinder.find_spec(parent, location)
        if spec is None:
            return None
        location, origin = spec.submodule_search_locations, spec.origin
    is_same = origin is not None and origin == getattr(sys.modules.get(module), "__file__", None)
    return f"{module}:{name}" if is_same else None


# --- what an experiment needs of this process ---------------------------------------------------------------


def given_objects(experiment: Experiment) -> dict[str, ComponentConfig]:
    """Return the objects of an experiment: table, or `observe`, to the settings."""
    configs: list[tuple[str, ComponentConfig | None]] = [
        (name, getattr(experiment, name)) for name in REGISTRIES
    ]
    configs += [("observe", observer) for observer in experiment.observe]
    return {table: config for table, config in configs if config is not None and config.object}


def describe_objects(configs: Mapping[str, ComponentConfig]) -> str:
    """Return objects as text, such as `rule 'loudest' and dataset 'arrays'`."""
    return " and ".join(f"{table} {quote(config.name)}" for table, config in configs.items())


def resume_call(path: object, tables: Iterable[str]) -> str:
    """Return the call that resumes a run with its objects."""
    return f"celm.resume({str(path)!r}, {', '.join(f'{table}=...' for table in tables)})"


def missing_objects(experiment: Experiment) -> dict[str, ComponentConfig]:
    """Return the objects of an experiment that this process does not have."""
    return {
        table: config
        for table, config in given_objects(experiment).items()
        if (config.name, config.object) not in REGISTRIES.get(table, rules).objects
    }


def give_objects(experiment: Experiment, given: Mapping[str, Any], source: object) -> None:
    """Remember the objects that a caller gives again for the experiment of a run folder, `source`.

    Raise CelmError if one is not needed, or is not the one that the run began with. Changed code is only a warning,
    because a digest cannot see whether it computes the same.
    """
    needed = given_objects(experiment)
    for table, value in given.items():
        if table not in needed:
            hint = suggest_name(table, needed) if needed else "it needs none"
            raise CelmError(f"{source} was not given an object as {table}", hint)
        for config in [needed[table]] if table != "observe" else [c for c in experiment.observe if c.object]:
            _give_object("rule" if table == "observe" else table, value, config, source)


def _give_object(table: str, value: Any, config: ComponentConfig, source: object) -> None:
    values = value if isinstance(value, list | tuple) and table == "rule" else [value]
    named = [name_object(table, item) for item in values]
    tables = {item["name"]: item for item in named if isinstance(item, dict) and "object" in item}
    item = tables.get(config.name)
    if item is None:
        raise CelmError(f"{source} is of {table} {quote(config.name)}, which {value!r:.80} is not")
    options = {key: option for key, option in item.items() if key not in ("name", "object")}
    if (
        not isinstance(value, type)
        and table not in ("dataset", "model", "split")
        and options != config.options
    ):
        raise CelmError(f"{source} is of {table} {quote(config.name)} with other settings: {config.options}")
    if item["object"] == config.object:
        return
    if table == "dataset":
        raise CelmError(f"{source} is of other data than those given as dataset")
    warnings.warn(f"{source}: {table} {quote(config.name)} has changed since the run began", stacklevel=4)
    registry = REGISTRIES[table]
    registry.objects[config.name, str(config.object)] = registry.objects[config.name, item["object"]]


def warn_unsaved(experiments: Iterable[Experiment], hint: Callable[[Iterable[str]], str]) -> None:
    """Warn in one line, if experiments have objects that a run folder cannot save."""
    needed = {
        table: config for experiment in experiments for table, config in given_objects(experiment).items()
    }
    if needed:
        warnings.warn(f"run folders do not save {describe_objects(needed)}: {hint(needed)}", stacklevel=3)
