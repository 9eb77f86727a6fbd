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

from celm.report.svg import inline_svg

BLOCK_OR_FIGURE = re.compile(
    r"^```python\n(?P<code>.*?)^```$|^<!-- figure: (?P<label>[^\n]+) -->$", re.DOTALL | re.MULTILINE
)


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str | None:
    if "<!-- figure: " not in markdown:
        return None
    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
        return insert_figures(markdown, page.file.name)


def insert_figures(markdown: str, page: str) -> str:
    names: dict[str, Any] = {}
    last_value: Any = None
    count = 0

    def replace_block(match: re.Match[str]) -> str:
        nonlocal last_value, count
        if match["code"] is not None:
            last_value = run_block(
                match["code"], names, f"{page}, line {markdown.count(chr(10), 0, match.start()) + 2}"
            )
            return match[0]
        count += 1
        picture = inline_svg(last_value, f"{page}-{count}", match["label"])
        return f'<div class="figure">{picture}</div>'

    return BLOCK_OR_FIGURE.sub(replace_block, markdown)


def run_block(code: str, names: dict[str, Any], where: str) -> Any:
    """The value of the last expression of the code, as in a notebook."""
    body = ast.parse(code, where).body
    last_expression = body.pop() if body and isinstance(body[-1], ast.Expr) else None
    exec(compile(ast.Module(body, []), where, "exec"), names)  # noqa: S102 - the project's own pages
    if last_expression is None:
        return None
    return eval(compile(ast.Expression(last_expression.value), where, "eval"), names)  # noqa: S307
