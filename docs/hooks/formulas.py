"""The formulas of docs/formulas.toml as HTML, on top of the pages of methods and metrics.

KaTeX renders them in the browser, from docs/assets/katex. Pages without formulas do not load it.
"""

from __future__ import annotations

import html
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from mkdocs.structure.files import Files
from mkdocs.utils import get_relative_url

FORMULAS: dict[str, dict[str, list[dict[str, str]]]] = tomllib.loads(
    (Path(__file__).parents[1] / "formulas.toml").read_text(encoding="utf-8")
)
_SHEET, _SCRIPTS = "assets/katex/katex.min.css", ("assets/katex/katex.min.js", "assets/formulas.js")
_CODE_OR_FORMULA = re.compile(r"`([^`]+)`|\$([^$]+)\$")


def formula_lines(section: str, name: str) -> Iterator[tuple[str, str]]:
    """Yield LaTeX and note of every line; nothing for a name without formulas."""
    for entry in FORMULAS.get(section, {}).get(name, []):
        if "use" in entry:
            yield from formula_lines("shared", entry["use"])
        else:
            yield entry["tex"], entry["note"]


def formula_block(section: str, name: str) -> str:
    """Return the formulas of a name as HTML; empty if it has none."""
    lines = [
        f'<div class="tex">{html.escape(tex)}</div><div class="note">{_format_note(note)}</div>'
        for tex, note in formula_lines(section, name)
    ]
    return "\n".join(['<div class="formulas" data-search-exclude>', *lines, "</div>"]) if lines else ""


def fold_plain_formula(text: str) -> str:
    """Fold the block of plain formulas that a docstring begins with."""
    block = re.match(r"(?: {4}.*(?:\n|$)|\n(?= {4}))+", text)
    if block is None:
        return text
    return (
        '<details class="plain" markdown="1"><summary>The same as plain text, as in the source</summary>\n\n'
        f"{block[0].rstrip()}\n\n</details>\n\n{text[block.end() :].lstrip()}"
    )


def on_page_content(content: str, page: Any, files: Files, **_: Any) -> str | None:
    if 'class="tex"' not in content:
        return None

    def address(path: str) -> str:
        file = files.get_file_from_path(path)
        assert file is not None, path
        return get_relative_url(file.url, page.url)

    scripts = "\n".join(f'<script src="{address(path)}"></script>' for path in _SCRIPTS)
    return f'<link rel="stylesheet" href="{address(_SHEET)}">\n{content}\n{scripts}'


def _format_note(note: str) -> str:
    """Return a note as HTML, with its `code` and $formulas$."""

    def replace(match: re.Match[str]) -> str:
        if match[1] is not None:
            return f"<code>{html.escape(match[1])}</code>"
        return f'<span class="tex">{html.escape(match[2])}</span>'

    parts, end = [], 0
    for match in _CODE_OR_FORMULA.finditer(note):
        parts += [html.escape(note[end : match.start()]), replace(match)]
        end = match.end()
    return "".join([*parts, html.escape(note[end:])])
