"""Docstrings and settings as Markdown, as they are: nothing is reworded on the way from the code to the page."""

from __future__ import annotations

import inspect
import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

BOUNDS = {"minimum": "≥", "exclusiveMinimum": ">", "maximum": "≤", "exclusiveMaximum": "<"}
TYPE_NAMES = {"integer": "whole number", "number": "number", "boolean": "true or false", "string": "text"}


def summary_and_body(thing: object) -> tuple[str, str]:
    """The first line of a docstring, and the rest as Markdown."""
    first, _, rest = (inspect.getdoc(thing) or "").partition("\n")
    return first, markdown(rest.strip("\n"))


def markdown(text: str) -> str:
    """A docstring's paragraphs. Indented ones are formulas to Markdown already; examples are given a fence.

    Where a formula is all there is, it stands at the margin: it is told by having no full stop.
    """
    paragraphs = re.split(r"\n{2,}", text)
    if len(paragraphs) == 1 and not text.startswith(">>>") and not text.endswith((".", ":")):
        return "\n".join(f"    {line}" for line in text.splitlines())
    return "\n\n".join(map(_format_paragraph, paragraphs))


def _format_paragraph(text: str) -> str:
    if text.lstrip().startswith(">>>"):
        return f"```pycon\n{inspect.cleandoc(text)}\n```"
    heading = re.match(r"Args:\n|Parameters\n-+\n", text)
    return text if heading is None else parameter_list(inspect.cleandoc(f"\n{text[heading.end() :]}"))


def parameter_list(text: str) -> str:
    """Return a list of parameters, each described on its line and on indented lines after it.

    >>> print(parameter_list("seed : of the noise\\nretries, wait: how often,\\n    and after how long"))
    - `seed`: of the noise
    - `retries`, `wait`: how often, and after how long
    """
    lines = []
    for names, meaning in re.findall(r"^(\w[\w, ]*?) ?: (.*(?:\n +.*)*)", text, re.MULTILINE):
        lines.append(f"- {', '.join(f'`{name}`' for name in names.split(', '))}: {' '.join(meaning.split())}")
    return "\n".join(lines)


def settings_table(schema: Mapping[str, Any]) -> str:
    """Name, kind, default and meaning of every property of a JSON schema; empty where there is none."""
    required = schema.get("required", [])
    return markdown_table(
        ("setting", "kind", "default", "meaning"),
        [
            (
                f"`{name}`",
                describe_type(field),
                "required" if name in required else format_default(field),
                " ".join(str(field.get("description", "")).split()),
            )
            for name, field in schema.get("properties", {}).items()
        ],
    )


def describe_type(field: Mapping[str, Any]) -> str:
    """What values a setting takes.

    >>> describe_type({"type": "number", "minimum": 0, "exclusiveMaximum": 1})
    'number ≥ 0, < 1'
    """
    if "anyOf" in field:
        return " or ".join(describe_type(part) for part in field["anyOf"] if part.get("type") != "null")
    if "enum" in field:
        return ", ".join(f"`{value}`" for value in field["enum"])
    if field.get("type") == "array":
        items = field.get("prefixItems") or [field["items"]]
        return (
            f"list of {len(items)}: {describe_type(items[0])}"
            if "prefixItems" in field
            else f"list: {describe_type(items[0])}"
        )
    bounds = [f"{sign} {field[key]:.12g}" for key, sign in BOUNDS.items() if key in field]
    return f"{TYPE_NAMES[field['type']]} {', '.join(bounds)}".strip()


def format_default(field: Mapping[str, Any]) -> str:
    """As it is written in an experiment file; a dash where what is not set is chosen by itself."""
    return "–" if field.get("default") is None else f"`{json.dumps(field['default'])}`"


def markdown_table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A Markdown table; a bar within a cell stays a character."""
    if not rows:
        return ""
    lines = [heads, ["---"] * len(heads), *([cell.replace("|", "\\|") for cell in row] for row in rows)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)
