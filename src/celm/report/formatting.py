"""Format names, texts and numbers for pages and figures. Client names are untrusted text."""

from __future__ import annotations

from collections.abc import Iterable, Sized
from itertools import islice

from celm.base.text import printable, single_line, truncate

_MAX_NAME_LENGTH = 60


def printable_line(text: str, max_length: int = 24) -> str:
    """Return the text as one line of printable characters, truncated to `max_length`.

    >>> printable_line("ward\\n7")
    'ward 7'
    >>> printable_line("a" * 30, max_length=5)
    'aaaa…'
    """
    return truncate(single_line(printable(text, replacement=" ")), max_length)


def format_name(name: object, max_length: int = _MAX_NAME_LENGTH) -> str:
    """Return the name as one short printable line that is never empty.

    >>> format_name("ward\\n7\\u202e"), format_name("")
    ('ward 7', '(no name)')
    """
    return printable_line(str(name), max_length) or "(no name)"


def format_text(text: object, max_length: int = 240) -> str:
    """Return a longer text, such as a reason, as one printable line."""
    return printable_line(str(text), max_length)


def format_lines(text: object, max_length: int = 400) -> str:
    """Return a text with its line breaks, without other control characters."""
    return "\n".join(printable(line, replacement=" ")[:max_length] for line in str(text).split("\n"))


def format_percent(value: float | None, decimals: int = 1) -> str:
    """Return a fraction in percent, or a dash for None.

    >>> format_percent(0.248), format_percent(None)
    ('24.8 %', '–')
    """
    return "–" if value is None else f"{100 * value:.{decimals}f} %"


def format_number(value: float | None, decimals: int = 2) -> str:
    """Return a number with thousands separators, or a dash for None."""
    return "–" if value is None else f"{value:,.{decimals}f}"


def format_duration(seconds: float) -> str:
    """Return a duration in the largest two units.

    >>> format_duration(1.96), format_duration(754), format_duration(7384)
    ('2.0 s', '12 min 34 s', '2 h 3 min')
    """
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes = int(seconds // 60)
    return f"{minutes} min {int(seconds % 60)} s" if minutes < 60 else f"{minutes // 60} h {minutes % 60} min"


def pluralise(count: int, noun: str) -> str:
    """Return the count with its noun.

    >>> pluralise(1, "client"), pluralise(5, "client"), pluralise(10, "class")
    ('1 client', '5 clients', '10 classes')
    """
    plural = noun + ("es" if noun.endswith("s") else "s")
    return f"{count} {noun if count == 1 else plural}"


def describe_size(clients: Sized, classes: Sized) -> str:
    """Return the size of a client x class table.

    >>> describe_size(["a"], ["0", "1"])
    '1 client by 2 classes'
    """
    return f"{pluralise(len(clients), 'client')} by {pluralise(len(classes), 'class')}"


def join_percents(values: Iterable[tuple[str, float | None]], max_count: int = 12) -> str:
    """Return the first `max_count` names with their fractions in percent.

    >>> join_percents([("a", 0.25), ("b", None)])
    'a 25.0 %, b –'
    """
    return ", ".join(
        f"{format_name(name, 24)} {format_percent(value)}" for name, value in islice(values, max_count)
    )
