"""The order of clients by name. Every sum over clients follows this order."""

from __future__ import annotations

import re
from collections.abc import Iterable


def natural_sort_key(name: str) -> tuple[tuple[int, int, str, str], ...]:
    """Return a sort key that compares digits as numbers: client-2 comes before client-10.

    >>> sorted(["client-10", "client-2", "b"], key=natural_sort_key)
    ['b', 'client-2', 'client-10']
    """
    # Numbers without leading zeros sort by length, then as text. So a name may have any number of digits.
    return tuple(
        (1, len(part.lstrip("0")), part.lstrip("0"), part) if i % 2 else (0, 0, "", part)
        for i, part in enumerate(re.split(r"([0-9]+)", name))
    )


def natural_sorted(names: Iterable[str]) -> list[str]:
    """Return the names in natural order."""
    return sorted(names, key=natural_sort_key)
