"""Public names of a package that are imported on first use, so that importing the package stays fast."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any


def lazy_attributes(package: str, modules: Mapping[str, str]) -> Callable[[str], Any]:
    """Return a `__getattr__` for `package` that imports each name in `modules` from the module it maps to.

    In a package's `__init__`, `if TYPE_CHECKING` imports the same names for type checkers and editors, and `else`
    sets `__getattr__` to the result.
    """

    def get_attribute(name: str) -> Any:
        if name not in modules:
            raise AttributeError(f"module '{package}' has no attribute '{name}'")
        value = getattr(import_module(modules[name]), name)
        setattr(sys.modules[package], name, value)
        return value

    return get_attribute
