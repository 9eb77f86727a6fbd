"""Client names and their order: everything summed over clients is summed in this order."""

from __future__ import annotations

import re
from collections.abc import Iterable


def natural(name: str) -> tuple[tuple[int, int, str, str], ...]:
    """Sort key that reads digits as numbers: client-2 before client-10.

    >>> sorted(["client-10", "client-2", "b"], key=natural)
    ['b', 'client-2', 'client-10']
    """
    # Without leading zeros, numbers sort by length and then as text: no limit on how many digits a name has.
    return tuple(
        (1, len(part.lstrip("0")), part.lstrip("0"), part) if i % 2 else (0, 0, "", part)
        for i, part in enumerate(re.split(r"([0-9]+)", name))
    )


def in_order(names: Iterable[str]) -> list[str]:
    return sorted(names, key=natural)
