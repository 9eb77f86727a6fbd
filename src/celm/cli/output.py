"""How the command line speaks: people's text on stderr, one JSON document on stdout when asked."""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Callable
from enum import StrEnum
from functools import wraps
from pathlib import Path
from typing import Any, ParamSpec

from rich.console import Console
from rich.text import Text

from celm.base.errors import CelmError
from celm.base.files import dump_json, explained

P = ParamSpec("P")


class Format(StrEnum):
    text = "text"
    json = "json"


notes = Console(stderr=True, highlight=False)
"""For progress, hints and errors."""


def console() -> Console:
    """For results a person asked for."""
    return Console(highlight=False)


def print_json(value: Any) -> None:
    if sys.stdout is None:
        raise CelmError("there is no standard output to print to")
    with explained(Path("standard output"), "write to"):
        sys.stdout.write(dump_json(value, indent=2) + "\n")
        sys.stdout.flush()


def with_exit_codes(command: Callable[P, None]) -> Callable[P, None]:
    """0 done, 2 the user can fix it (one line, no traceback), 130 interrupted; anything else is a bug."""

    @wraps(command)
    def guarded(*args: P.args, **kwargs: P.kwargs) -> None:
        for stream in (sys.stdout, sys.stderr):
            if isinstance(stream, io.TextIOWrapper):
                stream.reconfigure(errors="replace")  # a terminal that cannot show a bar shows something else
        try:
            command(*args, **kwargs)
        except CelmError as error:
            complain(str(error))
            raise SystemExit(2) from None
        except KeyboardInterrupt:
            raise SystemExit(130) from None
        except BrokenPipeError:
            # Whoever read the output has gone, as `head` does. What is still in the buffer must not be tried again.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            raise SystemExit(0) from None

    return guarded


def complain(problem: str, hint: str | None = None) -> None:
    """One line on what is wrong."""
    line = printable(" ".join((f"{problem} ({hint})" if hint else problem).split()))
    notes.print(Text.assemble(("error: ", "bold red"), line), soft_wrap=True)


def warn(line: str) -> None:
    notes.print(
        Text.assemble(("warning: ", "bold yellow"), printable(" ".join(line.split()))), soft_wrap=True
    )


def printable(text: str) -> str:
    """Text from files or clients without control characters."""
    return "".join(char if char.isprintable() else f"\\x{ord(char):02x}" for char in text)
