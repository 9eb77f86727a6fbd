"""Links from the names of methods in tables and prose of written pages to the pages of these methods.

Code blocks, headings and existing links stay as they are, as do pages that are generated.
"""

from __future__ import annotations

import re
from typing import Any

from method_pages import KINDS
from mkdocs.structure.files import Files
from mkdocs.utils import get_relative_url

PATHS = {
    name: f"{section}/{name}.md" for section, (registry, *_) in KINDS.items() for name in registry.builtins
}
_KIND_OF_COMMON_WORD = {"celm": "rule", "folder": "dataset"}
"""Names that also mean something else: linked at the start of a cell, or after the word for their kind."""
_PROTECTED_OR_CODE = re.compile(
    r"<(?P<tag>a|pre|svg|h[1-6])\b.*?</(?P=tag)>|<code>(?P<name>\w+)</code>", re.DOTALL
)


def on_page_content(content: str, page: Any, files: Files, **_: Any) -> str | None:
    if page.file.generated_by is not None:
        return None
    addresses = {
        name: get_relative_url(file.url, page.url)
        for name, path in PATHS.items()
        if (file := files.get_file_from_path(path)) is not None
    }
    return link_names(content, addresses)


def link_names(content: str, addresses: dict[str, str]) -> str:
    """Return HTML in which every `<code>` that is just a name of a method is a link.

    >>> link_names("<p><code>krum</code> or <a>own <code>krum</code></a></p>", {"krum": "filters/krum.html"})
    '<p><a href="filters/krum.html"><code>krum</code></a> or <a>own <code>krum</code></a></p>'
    """

    def replace(match: re.Match[str]) -> str:
        name = match["name"]
        if name not in addresses or not _is_method(name, content[: match.start()]):
            return match[0]
        return f'<a href="{addresses[name]}">{match[0]}</a>'

    return _PROTECTED_OR_CODE.sub(replace, content)


def _is_method(name: str, before: str) -> bool:
    """Return whether a name means the method, given the HTML before it."""
    text = re.sub(r"<[^>]*>", "", before[-200:])
    if name not in _KIND_OF_COMMON_WORD:
        return not text.endswith("extra ")
    kind = _KIND_OF_COMMON_WORD[name]
    return re.search(r"<td[^>]*>$", before) is not None or re.search(rf"\b{kind}s?:? $", text) is not None
