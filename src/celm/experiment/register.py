"""`celm.register`: components of your own by name, in this process."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import is_dataclass
from typing import Any, TypeVar

from celm.base.code_digest import code_digest
from celm.base.errors import CelmError, suggest_name
from celm.base.registry import Configurable
from celm.experiment.objects import REGISTRIES, snake_case

_REGISTRIES = {f"{table}s": registry for table, registry in REGISTRIES.items()}
_Kind = TypeVar("_Kind", bound=type[Any])


def register(kind: str, name: str | None = None) -> Callable[[_Kind], _Kind]:
    """Return a decorator that makes a class available by name, in this process.

    The class is a frozen dataclass as in `docs/extending.md`. A run folder saves its name and settings only. So a run
    that was stopped can be resumed only in a process that registered the class, or by `celm.resume` with the object. A
    package has it everywhere.

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
        registry, chosen_name = _REGISTRIES[kind], name or snake_case(component.__name__)
        registry.register(chosen_name, component)
        registry.objects[chosen_name, code_digest(component)] = component
        return component

    return add
