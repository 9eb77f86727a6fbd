"""Tables of Markdown, for the page of the benchmarks."""

from __future__ import annotations

from collections.abc import Iterable, Sequence


def markdown_table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a Markdown table.

    >>> print(markdown_table(["a", "b"], [["1", "2"]]))
    | a | b |
    |---|---|
    | 1 | 2 |
    """
    lines = [header, ["---"] * len(header), *rows]
    first, second, *rest = ["| " + " | ".join(line) + " |" for line in lines]
    return "\n".join([first, second.replace(" ", ""), *rest])
