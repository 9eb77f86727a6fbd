"""Names of clients in data of the user."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from celm.base.errors import CelmError
from celm.base.text import quote


def check_client_names(values: Sequence[int | str], column: str, path: Path) -> tuple[str, ...]:
    """Return the client of each row; a number n is `client-n`. The names appear in tables, reports and logs."""
    names = tuple(f"client-{value}" if isinstance(value, int) else value.strip() for value in values)
    for name in set(names):
        if not 0 < len(name) <= 100 or not name.isprintable():
            raise CelmError(
                f"column '{column}' of {path} has an unusable client name {quote(name)}",
                "use 1 to 100 printable characters",
            )
    return names
