"""The one error that a user can cause and fix."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class CelmError(Exception):
    """An error that the user can fix. The message says what failed; the hint says what to do.

    The command line prints message and hint on one line, without a traceback, and exits with code 2.
    """

    def __init__(self, message: str, hint: str | None = None) -> None:
        super().__init__(message if hint is None else f"{message} ({hint})")
        self.hint = hint


def suggest_name(name: str, names: Iterable[str]) -> str:
    """Return a hint with the valid name closest to `name`, or with all valid names if none is close.

    >>> suggest_name("fedagv", ["fedavg", "celm"])
    "did you mean 'fedavg'?"
    >>> suggest_name("zzz", ["fedavg", "celm"])
    'one of: celm, fedavg'
    """
    valid_names = sorted(names)
    matches = difflib.get_close_matches(name, valid_names, n=1)
    return f"did you mean '{matches[0]}'?" if matches else f"one of: {', '.join(valid_names)}"
