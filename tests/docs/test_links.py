"""Names of methods in guides and overview pages lead to their pages; names in code do not."""

from __future__ import annotations

import doctest
import re
import sys
from pathlib import Path

import pytest
from markdown import Markdown

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def links(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "docs" / "hooks"))
    import method_links

    yield method_links
    for name in ("method_links", "method_pages", "formulas", "words"):
        sys.modules.pop(name, None)


def linked(links, markdown: str) -> list[str]:
    """Return the names that are linked to a method's page, in their order."""
    html = Markdown(extensions=["tables", "pymdownx.superfences"]).convert(markdown)
    found = links.link_names(html, {name: f"{path[:-3]}.html" for name, path in links.PATHS.items()})
    return re.findall(r'<a href="\w+/(\w+)\.html"><code>\1</code></a>', found)


def test_example_of_the_hook(links):
    assert doctest.testmod(links).failed == 0


def test_tables_of_methods_link_every_rule_and_objective(links):
    from celm.objectives import objectives
    from celm.rules import rules

    for page in ("methods.md", "overview.md"):
        found = linked(links, (ROOT / "docs" / page).read_text(encoding="utf-8"))
        assert {*rules.names(), *objectives.names()} <= set(found), page


@pytest.mark.parametrize(
    "markdown",
    [
        "```\ncelm run --rule `krum`\n```",
        "    `krum`",
        "# About `krum`",
        "[`krum`](elsewhere.md)",
        "`filter.name=krum`",
        "`pip install` the extra `vit`",
        "`celm` answers from models alone.",
        "| | in `celm` |\n|---|---|\n| a | not in `celm` |",
    ],
)
def test_code_headings_links_and_other_meanings_stay(links, markdown):
    assert linked(links, markdown) == []


@pytest.mark.parametrize(
    ("markdown", "names"),
    [
        ("With `krum` or `vit`.", ["krum", "vit"]),
        ("As the rule `celm` does; the [rules](index.md): `celm`.", ["celm", "celm"]),
        ("| a |\n|---|\n| `celm`, calibrated |", ["celm"]),
    ],
)
def test_names_in_prose_and_tables_are_linked(links, markdown, names):
    assert linked(links, markdown) == names
