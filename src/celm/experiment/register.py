"""`celm.register`: components of your own by name, in this process."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import is_dataclass
from typing import Any, TypeVar

from celm.attacks import attacks
from celm.base.errors import CelmError, suggest_name
from celm.base.registry import Configurable, Registry
from celm.data.registry import datasets, splits
from celm.experiment.config import Experiment
from celm.models.registry import models
from celm.objectives import objectives
from celm.rules import rules
from celm.rules.robust import aggregators, filters

_REGISTRIES: dict[str, Registry[Any]] = {
    "rules": rules,
    "objectives": objectives,
    "splits": splits,
    "datasets": datasets,
    "models": models,
    "attacks": attacks,
    "filters": filters,
    "aggregators": aggregators,
}
_Kind = TypeVar("_Kind", bound=type[Any])


def register(kind: str, name: str | None = None) -> Callable[[_Kind], _Kind]:
    """Return a decorator that makes a class available by name, in this process.

    The class is a frozen dataclass as in `docs/extending.md`. A run folder saves its name and settings only. So a run
    that was stopped can be resumed only in a process that registered the class. A package has it everywhere.

    Args:
        kind: `rules`, `objectives`, `splits`, `datasets`, `models`, `attacks`, `filters` or `aggregators`.
        name: the name; by default that of the class, as in `my_rule` for `MyRule`.
    """
    if kind not in _REGISTRIES:
        raise CelmError(f"unknown kind of component '{kind}'", suggest_name(str(kind), _REGISTRIES))

    def add(component: _Kind) -> _Kind:
        if not (
            isinstance(component, type) and issubclass(component, Configurable) and is_dataclass(component)
        ):
            raise CelmError(
                f"cannot register {component!r:.80}: it is not a dataclass with a base class of {kind}",
                "write @dataclass(frozen=True) below @celm.register(...)",
            )
        words = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", component.__name__).lower()
        _REGISTRIES[kind].register(name or words, component)
        return component

    return add


def registered_names(experiment: Experiment) -> list[str]:
    """Return the components of an experiment that only this process has."""
    tables: dict[str, Registry[Any]] = {
        "dataset": datasets, "split": splits, "model": models, "rule": rules, "objective": objectives,
        "attack": attacks, "filter": filters, "aggregator": aggregators,
    }  # fmt: skip
    used: list[tuple[Any, Registry[Any]]] = [
        (getattr(experiment, table), registry) for table, registry in tables.items()
    ]
    used += [(observer, rules) for observer in experiment.observe]
    return [
        config.name for config, registry in used if config is not None and config.name in registry.registered
    ]
