"""One self-contained page: the shared look and script inside it, and a policy that lets nothing else in."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from celm import __version__
from celm.report.style import plain

TEMPLATES = Path(__file__).parent / "templates"
LONGEST = 60
"""Characters of a name; what is longer is cut."""


def render(template: str, context: Mapping[str, Any], images: bool = False) -> str:
    """The page. `images` allows the embedded pictures that figures of pixels need."""
    environment = Environment(
        loader=FileSystemLoader(TEMPLATES),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters.update(
        name=shown,
        percent=percent,
        note=note,
        lines=lines,
        number=number,
        seconds=duration,
        counted=counted,
    )
    style, script = asset("report.css"), asset("sort.js")
    return environment.get_template(template).render(
        **context, style=style, script=script, policy=policy(style, script, images), version=__version__
    )


def asset(name: str) -> Markup:
    """A file of ours that goes into the page as it is."""
    text = (TEMPLATES / name).read_text(encoding="utf-8")
    return Markup("\n" + text)  # noqa: S704 - part of the package


def policy(style: str, script: str, images: bool) -> str:
    """Content-Security-Policy: this style sheet and this script, by their hashes, and nothing from anywhere."""
    parts = [
        "default-src 'none'",
        f"style-src 'sha256-{digest(style)}'",
        f"script-src 'sha256-{digest(script)}'",
        *(["img-src data:"] if images else []),
        "base-uri 'none'",
        "form-action 'none'",
    ]
    return "; ".join(parts)


def digest(text: str) -> str:
    return base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


def shown(text: object, longest: int = LONGEST) -> str:
    """A name as one short line of visible characters; never nothing.

    >>> shown("ward\\n7\\u202e"), shown("")
    ('ward 7', '(no name)')
    """
    return plain(str(text), longest) or "(no name)"


def note(text: object, longest: int = 240) -> str:
    """A longer text, such as a reason, as one line."""
    return plain(str(text), longest)


def lines(text: object, longest: int = 400) -> str:
    """A text of several lines without other control characters."""
    return "\n".join(
        "".join(char if char.isprintable() else " " for char in line)[:longest]
        for line in str(text).split("\n")
    )


def percent(value: float | None, decimals: int = 1) -> str:
    """
    >>> percent(0.248), percent(None)
    ('24.8 %', '–')
    """
    return "–" if value is None else f"{100 * value:.{decimals}f} %"


def counted(count: int, noun: str) -> str:
    """
    >>> counted(1, "client"), counted(5, "client"), counted(10, "class")
    ('1 client', '5 clients', '10 classes')
    """
    plural = noun + ("es" if noun.endswith("s") else "s")
    return f"{count} {noun if count == 1 else plural}"


def number(value: float | None, decimals: int = 2) -> str:
    return "–" if value is None else f"{value:,.{decimals}f}"


def duration(seconds: float) -> str:
    """
    >>> duration(1.96), duration(754), duration(7384)
    ('2.0 s', '12 min 34 s', '2 h 3 min')
    """
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes = int(seconds // 60)
    return f"{minutes} min {int(seconds % 60)} s" if minutes < 60 else f"{minutes // 60} h {minutes % 60} min"
