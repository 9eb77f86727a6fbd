"""The reference: the command line from its options, settings from their types, functions from their docstrings."""

from __future__ import annotations

import html
import inspect
import re
import textwrap
from collections.abc import Iterator
from typing import Any

import typer
from method_pages import KINDS
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from typer.cli import get_docs_for_click
from words import markdown, settings_table

from celm.cli.app import app
from celm.experiment.config import Experiment

LINE_LENGTH = 84
"""Longest signature on one line, so that it fits beside the table of contents."""


def on_files(files: Files, config: MkDocsConfig) -> Files:
    for path, text in {
        "cli.md": command_line(),
        "settings.md": settings_page(),
    }.items():
        files.append(File.generated(config, path, content=text))
    return files


def command_line() -> str:
    """What `typer utils docs` writes, with the examples and exit codes of the help texts as blocks."""
    command = typer.main.get_command(app)
    for subcommand in iter_commands(command):
        # Some versions of typer turn markup into HTML, others leave it.
        subcommand.help = re.sub(r"\[/?bold\]", "", subcommand.help or "")
        subcommand.short_help = subcommand.help.partition("\n")[0]  # else it is cut to fit a terminal
    text = get_docs_for_click(obj=command, ctx=typer.Context(command, info_name="celm"), name="celm")
    text = re.sub(r"^(Examples?|Exit codes)\n\n((?:  .*\n\n?)+)", format_block, text, flags=re.MULTILINE)
    return text.replace("# `celm`", "---\ntitle: Command line\n---\n\n# The command line", 1)


def iter_commands(group: Any) -> Iterator[Any]:
    for command in getattr(group, "commands", {}).values():
        yield command
        yield from iter_commands(command)


def format_block(match: re.Match[str]) -> str:
    language = "text" if match[1] == "Exit codes" else "sh"
    lines = html.unescape(textwrap.dedent(match[2])).strip()
    return f"**{match[1]}**:\n\n```{language}\n{lines}\n```\n\n"


def function_entry(level: str, name: str, function: Any) -> str:
    docs = inspect.getdoc(function) or ""
    return f"{level} `{name}`\n\n```python\n{format_signature(name, function)}\n```\n\n{markdown(docs)}"


class BareAnnotation(str):
    """An annotation as it is written, without quotes."""

    __repr__ = str.__str__


def format_signature(name: str, function: Any) -> str:
    """On one line where it fits, else a line for each parameter."""
    full_signature = inspect.signature(function)
    parameters = [
        p.replace(annotation=BareAnnotation(p.annotation))
        for p in full_signature.parameters.values()
        if p.name not in ("self", "cls")
    ]
    return_annotation = BareAnnotation(full_signature.return_annotation)
    line = f"{name}{full_signature.replace(parameters=parameters, return_annotation=return_annotation)}"
    if len(line) <= LINE_LENGTH:
        return line
    first = next((i for i, p in enumerate(parameters) if p.kind is p.KEYWORD_ONLY), len(parameters))
    lines = [
        *map(str, parameters[:first]),
        *(["*"] if first < len(parameters) else []),
        *map(str, parameters[first:]),
    ]
    return "\n".join([f"{name}(", *(f"    {text}," for text in lines), f") -> {return_annotation}"])


def settings_page() -> str:
    """The tables of an experiment file, with the keys that do not depend on what is chosen."""
    parts = [
        "---\nhide: [toc]\n---\n\n# Settings",
        "An experiment file is TOML with these tables; `celm init my.toml` writes one with every setting in it, and\n"
        "`--set TABLE.KEY=VALUE` changes one on the command line. A table with a `name` also has the settings of the\n"
        "named component, which are on the component's own page. A dash as the default means that celm chooses the\n"
        "value, as the meaning says. An unknown or ill-typed key is an error that suggests the nearest valid key.",
    ]
    sections = {registry.kind: section for section, (registry, *_) in KINDS.items()}
    schema = Experiment.model_json_schema()
    for table, field in schema["properties"].items():
        reference = next((part for part in [field, *field.get("anyOf", [])] if "$ref" in part), None)
        parts.append(f"## `{table}`\n\n{field.get('description', '')}")
        if table in sections:
            parts.append(f"`name` is one of the [{sections[table]}]({sections[table]}/index.md).")
        if reference is None:
            parts.append("A list of tables, each with the `name` of a rule and its settings.")
        else:
            parts.append(settings_table(schema["$defs"][reference["$ref"].rpartition("/")[2]]))
    return "\n\n".join(parts) + "\n"
