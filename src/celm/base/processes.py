"""Start worker processes that do not import the user's script again."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def without_main_script(is_needed: bool = False) -> Iterator[None]:
    """Start processes inside the block without the user's script, unless `is_needed`.

    A spawned process usually imports the script of its parent. A script without `if __name__ == "__main__":` would then
    start again in each worker. Workers import everything from packages, so they do not need the script, except for a
    model `__main__:factory`.
    """
    main = sys.modules.get("__main__")
    if main is None or is_needed:
        yield
        return
    missing = object()
    saved = {name: main.__dict__.get(name, missing) for name in ("__file__", "__spec__")}
    main.__dict__.pop("__file__", None)
    main.__dict__["__spec__"] = None
    try:
        yield
    finally:
        for name, value in saved.items():
            if value is missing:
                main.__dict__.pop(name, None)
            else:
                main.__dict__[name] = value
