"""A page as its reader has it, what makes it safe, and names that try to break it."""

from __future__ import annotations

import base64
import hashlib
from html.parser import HTMLParser

HOSTILE = [
    "<script>alert(1)</script>",
    "\"'><img src=x onerror=alert(1)>\x00\x1b[31m\u202e\u200f",
    "{{ 7 * 7 }}</style></title>" + "x" * 10_000,
]


class Page(HTMLParser):
    """Elements, attributes and visible text of a page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str, str | None]] = []
        self.pieces: list[str] = []
        self.raw: dict[str, str] = {}
        self.inside = ""
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag in ("dt", "dd", "td", "th", "p", "small"):
            self.pieces.append(" ")
        self.tags.append(tag)
        self.attributes += [(tag, name, value) for name, value in attrs]
        self.inside = tag

    def handle_endtag(self, tag: str) -> None:
        self.inside = ""

    def handle_data(self, data: str) -> None:
        if self.inside in ("style", "script"):
            self.raw[self.inside] = data
        else:
            self.pieces.append(data)

    @property
    def text(self) -> str:
        return " ".join("".join(self.pieces).split())

    @property
    def policy(self) -> str:
        contents = [v for t, n, v in self.attributes if t == "meta" and n == "content" and v]
        (policy,) = [value for value in contents if "default-src" in value]
        return policy


def safe(page: Page) -> None:
    """One style, one script, both those that the policy names; no handlers, no inline style, nothing loaded."""
    assert page.tags.count("script") == page.tags.count("style") == 1
    assert page.policy.startswith("default-src 'none'; ")
    assert "unsafe" not in page.policy
    for kind in ("style", "script"):
        digest = base64.b64encode(hashlib.sha256(page.raw[kind].encode()).digest()).decode()
        assert f"{kind}-src 'sha256-{digest}'" in page.policy
    assert not {"img", "iframe", "link", "base", "form", "object", "embed", "foreignobject"} & set(page.tags)
    for tag, name, value in page.attributes:
        assert not name.startswith("on"), (tag, name)
        assert name != "style", (tag, value)
        assert name != "src", (tag, value)
        if name == "href":
            assert value is not None
            assert value.startswith(("#", "data:image/png;base64,")) or value.endswith("report.html")
    ids = [value for _, name, value in page.attributes if name == "id"]
    assert len(ids) == len(set(ids))
    referred = {
        value[1:] for _, name, value in page.attributes if name == "href" and value and value[0] == "#"
    }
    assert referred <= set(ids)
