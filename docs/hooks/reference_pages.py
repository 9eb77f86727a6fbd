"""The reference: the command line from its options, Python names from docstrings, settings from their types."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from typing import Any

import typer
from method_pages import KINDS
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from pydantic import BaseModel
from typer.cli import get_docs_for_click
from words import markdown, settings_table

import celm
from celm.cli.app import app
from celm.federation.experiment import Experiment


def on_files(files: Files, config: MkDocsConfig) -> Files:
    for path, text in {"cli.md": command_line(), "api.md": names(), "settings.md": settings()}.items():
        files.append(File.generated(config, path, content=text))
    return files


def command_line() -> str:
    """What `typer utils docs` writes, with the examples of the help texts as blocks."""
    command = typer.main.get_command(app)
    for each in commands(command):
        each.short_help = (each.help or "").partition("\n")[0]  # else it is cut to fit a terminal
    text = get_docs_for_click(obj=command, ctx=typer.Context(command, info_name="celm"), name="celm")
    text = re.sub(r"\[bold\](Examples?)\[/bold\]\n\n((?:  .*\n\n?)+)", examples, text)
    return text.replace("# `celm`", "---\ntitle: Command line\n---\n\n# The command line", 1)


def commands(group: Any) -> Iterator[Any]:
    for command in getattr(group, "commands", {}).values():
        yield command
        yield from commands(command)


def examples(found: re.Match[str]) -> str:
    lines = "\n".join(line.strip() for line in found[2].splitlines() if line.strip())
    return f"**{found[1]}**:\n\n```sh\n{lines}\n```\n\n"


def names() -> str:
    """Every public name: signature, docstring, and of a class its fields, properties and methods."""
    parts = ["# The Python interface", f"{celm.__doc__}"]
    for name in celm.__all__:
        value = getattr(celm, name)
        if name == "__version__":
            parts.append(f"## `celm.__version__`\n\nThe version, `{value!r}`.")
        elif inspect.isclass(value):
            parts.append(class_entry(name, value))
        else:
            parts.append(entry("##", f"celm.{name}", value))
    return "\n\n".join(parts) + "\n"


def entry(level: str, name: str, function: Any) -> str:
    docs = inspect.getdoc(function) or ""
    return f"{level} `{name}`\n\n```python\n{signature(name, function)}\n```\n\n{markdown(docs)}"


class Bare(str):
    """An annotation as it is written, without quotes."""

    __repr__ = str.__str__


def signature(name: str, function: Any) -> str:
    """On one line where it fits, else a line for each parameter."""
    said = inspect.signature(function)
    kept = [
        p.replace(annotation=Bare(p.annotation))
        for p in said.parameters.values()
        if p.name not in ("self", "cls")
    ]
    returns = Bare(said.return_annotation)
    line = f"{name}{said.replace(parameters=kept, return_annotation=returns)}"
    if len(line) <= 100:
        return line
    first = next((i for i, p in enumerate(kept) if p.kind is p.KEYWORD_ONLY), len(kept))
    lines = [*map(str, kept[:first]), *(["*"] if first < len(kept) else []), *map(str, kept[first:])]
    return "\n".join([f"{name}(", *(f"    {text}," for text in lines), f") -> {returns}"])


def class_entry(name: str, kind: type) -> str:
    parts = [f"## `celm.{name}`", markdown(inspect.getdoc(kind) or "")]
    if issubclass(kind, BaseModel):
        parts.append("Its tables and their keys are on the page of [settings](settings.md).")
    elif not issubclass(kind, Exception):
        parts.append(f"```python\n{signature(name, kind).removesuffix(' -> None')}\n```")
    for key, member in vars(kind).items():
        if key.startswith("_") or not inspect.getdoc(getattr(kind, key)):
            continue
        if isinstance(member, property):
            kept = inspect.signature(member.fget).return_annotation
            parts.append(f"### `{name}.{key}`\n\n{markdown(inspect.getdoc(member) or '')}\n\nA `{kept}`.")
        elif isinstance(member, classmethod) or inspect.isfunction(member):
            parts.append(entry("###", f"{name}.{key}", getattr(kind, key)))
    return "\n\n".join(parts)


def settings() -> str:
    """The tables of an experiment file, with the keys that do not depend on what is chosen."""
    parts = [
        "---\nhide: [toc]\n---\n\n# Settings",
        "An experiment file is TOML with these tables; `celm init my.toml` writes one with every setting in it, and\n"
        "`--set TABLE.KEY=VALUE` changes one on the command line. A table that has a `name` also takes the settings\n"
        "of what is named, which are on that thing's own page. A dash as the default means that the value is chosen\n"
        "by itself, as the meaning says. An unknown or ill-typed key is refused, with the nearest that exists.",
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
