"""Names of clients in data of the user."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from celm.base.errors import CelmError
from celm.base.text import quote


def check_client_names(values: Sequence[Any], source: str) -> tuple[str, ...]:
    """Return the client of each row; a number n is `client-n`. `source` names the data in errors.

    The names appear in tables, reports and logs.
    """
    for value in values:
        if not isinstance(value, int | str):
            raise CelmError(f"{source} must have a name or a number in each row, not {value!r:.60}")
    names = tuple(f"client-{value}" if isinstance(value, int) else value.strip() for value in values)
    for name in set(names):
        if not 0 < len(name) <= 100 or not name.isprintable():
            raise CelmError(
                f"{source} has an unusable client name {quote(name)}",
                "use 1 to 100 printable characters",
            )
    return names
