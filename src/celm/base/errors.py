"""The one error a user can cause."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class CelmError(Exception):
    """Something the user can fix: what was wrong, where, and what to do.

    The command line prints the message on one line and exits with 2; there is no traceback.
    """

    def __init__(self, message: str, hint: str | None = None) -> None:
        super().__init__(message if hint is None else f"{message} ({hint})")
        self.hint = hint


def nearest(name: str, names: Iterable[str]) -> str:
    """A hint that names the closest valid name, or all of them when none is close.

    >>> nearest("fedagv", ["fedavg", "celm"])
    "did you mean 'fedavg'?"
    >>> nearest("zzz", ["fedavg", "celm"])
    'one of: celm, fedavg'
    """
    known = sorted(names)
    close = difflib.get_close_matches(name, known, n=1)
    return f"did you mean '{close[0]}'?" if close else f"one of: {', '.join(known)}"
