"""The methods of a comparison: names, or rules and objectives as objects."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from celm.base.errors import CelmError
from celm.experiment.objects import name_object
from celm.study.spec import parse_method

if TYPE_CHECKING:
    from celm.objectives.objective import AnyObjective
    from celm.rules.rule import AnyRule

    Method = str | AnyRule | AnyObjective | tuple[str | AnyRule, str | AnyObjective]
    """A rule, `rule+objective`, an objective, or a pair of rule and objective."""


@dataclass(frozen=True)
class MethodSettings:
    """A method as tables of settings. An object has all its settings; a name takes those of the experiment."""

    label: str
    rule: Mapping[str, Any]
    objective: Mapping[str, Any]

    @property
    def digests(self) -> list[str]:
        """Return the digests of the objects."""
        return [table["object"] for table in (self.rule, self.objective) if "object" in table]

    def apply(self, tables: dict[str, Any]) -> None:
        """Set rule and objective of an experiment, and drop the settings of another rule or objective."""
        for name, table in (("rule", self.rule), ("objective", self.objective)):
            if len(table) > 1 or tables[name]["name"] != table["name"]:
                tables[name] = dict(table)


def read_methods(methods: Sequence[Method]) -> list[MethodSettings]:
    """Return the methods as settings. Raise CelmError if two have the same name and settings."""
    settings = [_read_method(method) for method in methods]
    labels = [method.label for method in settings]
    if len(set(labels)) < len(labels):
        raise CelmError(f"methods must be without duplicates: {labels}")
    return settings


def _read_method(method: Any) -> MethodSettings:
    if isinstance(method, str):
        rule, objective = parse_method(method)
        return MethodSettings(method, {"name": rule}, {"name": objective})
    from celm.objectives.objective import Objective

    if isinstance(method, tuple | list):
        if len(method) != 2:
            raise CelmError(f"method {method!r:.80} is not a pair of rule and objective")
        rule_value, objective_value = method
    elif isinstance(method, Objective) or (isinstance(method, type) and issubclass(method, Objective)):
        table = _as_table("objective", method)
        return MethodSettings(_label(table), {"name": "fedavg"}, table)
    else:
        rule_value, objective_value = method, "plain"
    tables = [_as_table("rule", rule_value), _as_table("objective", objective_value)]
    parse_method("+".join(table["name"] for table in tables if "object" not in table) or "celm")
    shown = tables if objective_value != "plain" else tables[:1]
    return MethodSettings("+".join(map(_label, shown)), *tables)


def _as_table(table: str, value: Any) -> dict[str, Any]:
    named = name_object(table, value)
    if isinstance(named, str):
        return {"name": named}
    if not isinstance(named, dict):
        raise CelmError(f"method {value!r:.80} is neither a name nor a {table}")
    return named


def _label(table: Mapping[str, Any]) -> str:
    options = [f"{key}={value}" for key, value in table.items() if key not in ("name", "object")]
    return " ".join([table["name"], *options])
