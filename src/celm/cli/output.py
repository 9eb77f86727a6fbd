"""Output of the command line: messages on stderr, results or one JSON document on stdout."""

from __future__ import annotations

import io
import os
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from enum import StrEnum
from functools import wraps
from pathlib import Path
from typing import Any, ParamSpec

from rich.console import Console
from rich.text import Text

from celm.base.errors import CelmError
from celm.base.files import dump_json, os_errors_as_celm_error
from celm.base.text import printable as printable

P = ParamSpec("P")


class Format(StrEnum):
    text = "text"
    json = "json"


stderr_console = Console(stderr=True, highlight=False)
"""Console for progress, hints and errors."""


def stdout_console() -> Console:
    """Return a console for results."""
    return Console(highlight=False)


def print_json(value: Any) -> None:
    """Print one JSON document on stdout."""
    if sys.stdout is None:
        raise CelmError("cannot print the result: there is no standard output")
    with os_errors_as_celm_error(Path("standard output"), "write to"):
        sys.stdout.write(dump_json(value, indent=2) + "\n")
        sys.stdout.flush()


def with_exit_codes(command: Callable[P, None]) -> Callable[P, None]:
    """Make a command exit with 0 if done, 2 after an error the user can fix (one line), 130 if interrupted.

    Any other exception is a bug and is not caught.
    """

    @wraps(command)
    def wrapper(*args: P.args, **kwargs: P.kwargs) -> None:
        for stream in (sys.stdout, sys.stderr):
            if isinstance(stream, io.TextIOWrapper):
                stream.reconfigure(errors="replace")  # a terminal may lack characters of bars and tables
        try:
            with _warnings_on_one_line():
                command(*args, **kwargs)
        except CelmError as error:
            print_error(str(error))
            raise SystemExit(2) from None
        except KeyboardInterrupt:
            raise SystemExit(130) from None
        except BrokenPipeError:
            # The reader of stdout has exited, as `head` does. Discard what is buffered, or it is written again at exit.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            raise SystemExit(0) from None

    return wrapper


@contextmanager
def _warnings_on_one_line() -> Iterator[None]:
    """Print warnings for users in one line, without the place in the code that Python adds."""
    show = warnings.showwarning

    def show_on_one_line(message: Warning | str, category: type[Warning], *place: Any, **more: Any) -> None:
        if category is UserWarning:
            print_warning(str(message))
        else:
            show(message, category, *place, **more)

    warnings.showwarning = show_on_one_line
    try:
        yield
    finally:
        warnings.showwarning = show


def print_error(message: str, hint: str | None = None) -> None:
    """Print an error on one line of stderr."""
    line = printable(" ".join((f"{message} ({hint})" if hint else message).split()))
    stderr_console.print(Text.assemble(("error: ", "bold red"), line), soft_wrap=True)


def print_warning(message: str) -> None:
    """Print a warning on one line of stderr."""
    line = printable(" ".join(message.split()))
    stderr_console.print(Text.assemble(("warning: ", "bold yellow"), line), soft_wrap=True)
