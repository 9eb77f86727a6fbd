"""Constructors that fix the first argument of another one, with its signature."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import wraps
from typing import Any, Concatenate, ParamSpec

_P = ParamSpec("_P")


def fix_first_argument(
    constructor: Callable[Concatenate[Any, Any, _P], None], value: object
) -> Callable[[Callable[..., None]], Callable[Concatenate[Any, _P], None]]:
    """Return a decorator that replaces a constructor by `constructor` with its first argument fixed to `value`.

    Type checkers and editors see all other parameters, with their defaults, and so does `inspect.signature`.
    """

    def decorate(declared: Callable[..., None]) -> Callable[Concatenate[Any, _P], None]:
        @wraps(declared)
        def init(self: Any, /, *args: _P.args, **kwargs: _P.kwargs) -> None:
            constructor(self, value, *args, **kwargs)

        signature = inspect.signature(constructor)
        self_parameter, _, *others = signature.parameters.values()
        init.__signature__ = signature.replace(parameters=[self_parameter, *others])  # type: ignore[attr-defined]
        return init

    return decorate
