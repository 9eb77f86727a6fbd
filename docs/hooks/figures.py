"""Pictures drawn by the code that stands above them, when the site is built.

On a page with a line `<!-- figure: what it shows -->` all Python blocks are run in their order, as the cells of a
notebook are, in an empty folder. The line is replaced by the figure that the block before it ends with.
"""

from __future__ import annotations

import ast
import contextlib
import re
import tempfile
from typing import Any

from celm.report.inline import inline_svg

PART = re.compile(
    r"^```python\n(?P<code>.*?)^```$|^<!-- figure: (?P<label>[^\n]+) -->$", re.DOTALL | re.MULTILINE
)


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str | None:
    if "<!-- figure: " not in markdown:
        return None
    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
        return drawn(markdown, page.file.name)


def drawn(markdown: str, page: str) -> str:
    names: dict[str, Any] = {}
    last: Any = None
    count = 0

    def replaced(found: re.Match[str]) -> str:
        nonlocal last, count
        if found["code"] is not None:
            last = run(found["code"], names, f"{page}, line {markdown.count(chr(10), 0, found.start()) + 2}")
            return found[0]
        count += 1
        picture = inline_svg(last, f"{page}-{count}", found["label"])
        return f'<div class="figure">{picture}</div>'

    return PART.sub(replaced, markdown)


def run(code: str, names: dict[str, Any], where: str) -> Any:
    """The value of the last expression of the code, as in a notebook."""
    body = ast.parse(code, where).body
    last = body.pop() if body and isinstance(body[-1], ast.Expr) else None
    exec(compile(ast.Module(body, []), where, "exec"), names)  # noqa: S102 - the project's own pages
    return eval(compile(ast.Expression(last.value), where, "eval"), names) if last else None  # noqa: S307
