"""Render a self-contained page: style sheet and script are inline, and its policy allows nothing else."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from celm import __version__
from celm.report.formatting import (
    format_duration,
    format_lines,
    format_name,
    format_number,
    format_percent,
    format_text,
    pluralise,
)
from celm.report.many_clients import MAX_LISTED, MAX_ROWS, first_items
from celm.report.plain_names import plain_label, plain_name

_TEMPLATE_FOLDER = Path(__file__).parent / "templates"


def render_page(template: str, context: Mapping[str, Any], images: bool = False) -> str:
    """Return the page as HTML. `images` allows embedded images, which figures of pixels need."""
    environment = Environment(
        loader=FileSystemLoader(_TEMPLATE_FOLDER),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters.update(
        display_name=format_name,
        duration=format_duration,
        multi_line=format_lines,
        number=format_number,
        one_line=format_text,
        percent=format_percent,
        plain_label=plain_label,
        plain_name=plain_name,
        pluralise=pluralise,
    )
    environment.globals.update(max_listed=MAX_LISTED, max_rows=MAX_ROWS, first_items=first_items)
    style, script = _read_asset("report.css"), _read_asset("report.js")
    return environment.get_template(template).render(
        **context,
        style=style,
        script=script,
        policy=_security_policy(style, script, images),
        version=__version__,
    )


def _read_asset(name: str) -> Markup:
    """Return a file of this package, to be inserted unescaped."""
    text = (_TEMPLATE_FOLDER / name).read_text(encoding="utf-8")
    return Markup("\n" + text)  # noqa: S704 - part of the package


def _security_policy(style: str, script: str, images: bool) -> str:
    """Build the Content-Security-Policy. It allows this style sheet and this script, by hash, and no network."""
    parts = [
        "default-src 'none'",
        f"style-src 'sha256-{_csp_hash(style)}'",
        f"script-src 'sha256-{_csp_hash(script)}'",
        *(["img-src data:"] if images else []),
        "base-uri 'none'",
        "form-action 'none'",
    ]
    return "; ".join(parts)


def _csp_hash(text: str) -> str:
    return base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
