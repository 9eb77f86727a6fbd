"""Untrusted text made safe to print, to log and to put into a message.

Names and messages from clients, files and libraries may contain control characters, bidirectional overrides,
lone surrogates, or thousands of characters. One policy for all of them:

- `printable` escapes or replaces every character that `str.isprintable` rejects.
- `quote` puts a value between quotes, in ASCII, for names inside a message.
- `truncate` bounds the length.
- `csv_cell` keeps a spreadsheet from running text as a formula.
- `single_line` removes line breaks; `format_exception` applies all of this to an exception.
"""

from __future__ import annotations

_FORMULA_STARTS = ("=", "+", "-", "@")


def printable(text: str, replacement: str | None = None) -> str:
    """Return `text` with each unprintable character escaped as in Python, or replaced by `replacement`.

    >>> printable("a\\x1b[2J\\u202e"), printable("ward\\n7", replacement=" ")
    ('a\\\\x1b[2J\\\\u202e', 'ward 7')
    """
    if text.isprintable():
        return text
    return "".join(
        char if char.isprintable() else ascii(char)[1:-1] if replacement is None else replacement
        for char in text
    )


def csv_cell(value: object) -> object:
    """Return a value for a CSV file: text is printable, and an apostrophe precedes what a spreadsheet would run.

    >>> csv_cell("=1+1"), csv_cell(" @SUM(A1)"), csv_cell("ward\\r=1"), csv_cell(-0.5), csv_cell(None), csv_cell(True)
    ("'=1+1", "' @SUM(A1)", 'ward\\\\r=1', -0.5, '', 'true')
    """
    if value is None:
        return ""
    if isinstance(value, bool):
        return str(value).lower()
    if not isinstance(value, str):
        return value
    text = printable(value)  # some programs end a row at a carriage return
    return f"'{text}" if text.lstrip().startswith(_FORMULA_STARTS) else text


def single_line(text: str) -> str:
    """Return `text` on one line: each run of white space becomes one space.

    >>> single_line(" out of\\n  luck ")
    'out of luck'
    """
    return " ".join(text.split())


def truncate(text: str, limit: int) -> str:
    """Return at most `limit` characters of `text`; a text that was cut ends in an ellipsis.

    >>> truncate("evidence", 8), truncate("evidence", 5)
    ('evidence', 'evid…')
    """
    return text if len(text) <= limit else f"{text[: limit - 1]}…"


def quote(value: object, limit: int = 80) -> str:
    """Return a name for a message: quoted and escaped ASCII of about `limit` characters at most.

    A value that is not text is described by its type: nothing of its content is printed.

    >>> quote("fc1.weight"), quote("a\\nb"), quote(7)
    ("'fc1.weight'", "'a\\\\nb'", 'of int name')
    """
    if not isinstance(value, str):
        return f"of {type(value).__name__[:40]} name"
    text = ascii(value[:limit])
    return f"{text[:limit]}...{text[-1]}" if len(value) > limit or len(text) > limit + 2 else text


def format_exception(error: BaseException, limit: int = 300) -> str:
    """Return the type and the message of `error` on one printable line of at most `limit` characters.

    >>> format_exception(RuntimeError("out of\\nluck")), format_exception(KeyboardInterrupt())
    ('RuntimeError: out of luck', 'KeyboardInterrupt')
    """
    message = single_line(str(error))
    name = type(error).__name__
    return truncate(printable(f"{name}: {message}" if message else name), limit)
