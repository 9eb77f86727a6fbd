"""Signatures and docstrings for docs/api.md, in place of its lines `<!-- reference: NAME ... -->`.

`package.*` is every name of a package's `__all__`. `Class[one,two]` shows these methods only. Flower is not needed to
build the site, so names of `celm.flower` and `celm.nvflare` are read from the source.
"""

from __future__ import annotations

import ast
import importlib
import inspect
import re
from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any

from pydantic import BaseModel
from reference_pages import LINE_LENGTH, format_signature, function_entry
from words import markdown, markdown_table

import celm

_REFERENCE = re.compile(r"^<!-- reference: (.+) -->$", re.MULTILINE)
_SOURCE = Path(celm.__file__).parents[1]


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str | None:
    return insert_entries(markdown) if page.file.src_uri == "api.md" else None


def insert_entries(text: str) -> str:
    """Replace every line of references by the entries of its names."""
    return _REFERENCE.sub(
        lambda match: "\n\n".join(entry(name, methods) for name, methods in iter_names(match[1])), text
    )


def iter_names(references: str) -> Iterator[tuple[str, list[str] | None]]:
    """Yield each name with the methods to show, or None for all of them."""
    for reference in references.split():
        name, _, methods = reference.rstrip("]").partition("[")
        if name.endswith(".*"):
            package = importlib.import_module(name[:-2])
            yield from ((f"{name[:-1]}{member}", None) for member in package.__all__)
        else:
            yield name, methods.split(",") if methods else None


def entry(name: str, methods: list[str] | None = None) -> str:
    """Return the heading, signature and docstring of a name, and how to import it if it is not in `celm` itself."""
    package, _, member = name.rpartition(".")
    if package in ("celm.flower", "celm.nvflare"):
        text = source_entry(package, member, methods or [])
    else:
        text = value_entry(name if package == "celm" else member, importlib.import_module(package), member)
    heading, _, rest = text.partition("\n\n")
    return text if package == "celm" else f"{heading}\n\n`from {package} import {member}`\n\n{rest}"


def value_entry(title: str, module: Any, member: str) -> str:
    value = inspect.unwrap(getattr(module, member))  # a package that can be called wraps its function
    if inspect.isclass(value):
        return class_entry(title, value)
    if callable(value):
        return function_entry("###", title, value)
    return f"### `{title}`\n\nThe version, `{value!r}`."


def class_entry(title: str, kind: type) -> str:
    """Return docstring and constructor of a class, or its code if it has fields only, and its documented members."""
    short = kind.__name__
    field_names = {field.name for field in fields(kind)} if is_dataclass(kind) else set()
    members = {
        key: member
        for key, member in vars(kind).items()
        if not key.startswith("_") and key not in field_names and inspect.getdoc(member)
    }
    properties = {
        key: getter
        for key, member in members.items()
        if (getter := getattr(member, "fget", None) or getattr(member, "func", None))
    }
    methods = [
        key
        for key, member in members.items()
        if inspect.isfunction(member) or isinstance(member, classmethod)
    ]
    parts = [f"### `{title}`"]
    if field_names and not properties and not methods:
        return "\n\n".join([*parts, f"```python\n{inspect.getsource(kind).rstrip()}\n```"])
    parts.append(markdown(inspect.getdoc(kind) or ""))
    signature = format_signature(short, kind).removesuffix(" -> None")
    if issubclass(kind, BaseModel):
        parts.append("Its tables and their keys are on the page of [settings](settings.md).")
    elif not issubclass(kind, Exception) and signature != f"{short}()":
        parts.append(f"```python\n{signature}\n```")
    if properties:
        rows = [(f"`{key}`", *describe_property(getter)) for key, getter in properties.items()]
        parts.append(markdown_table(("property", "type", "meaning"), rows))
    parts += [function_entry("####", f"{short}.{key}", getattr(kind, key)) for key in methods]
    return "\n\n".join(parts)


def describe_property(getter: Any) -> tuple[str, str]:
    """Return type and meaning of a property."""
    meaning = " ".join((inspect.getdoc(getter) or "").split())
    return f"`{inspect.signature(getter).return_annotation}`", meaning


def source_entry(package: str, name: str, methods: list[str]) -> str:
    """Return the entry of a class of a package that may not be importable here, read from its source."""
    source, kind = find_class(package, name)
    parts = [f"### `{name}`"]
    functions = {node.name: node for node in kind.body if isinstance(node, ast.FunctionDef)}
    if "__init__" not in functions:  # a dataclass
        code = ast.get_source_segment(source, kind)
        return "\n\n".join([*parts, f"```python\n@dataclass\n{code}\n```"])
    parts.append(markdown(ast.get_docstring(kind) or ""))
    if not functions["__init__"].decorator_list:
        parts.append(f"```python\n{source_signature(name, functions['__init__'])}\n```")
    for base in kind.bases:  # a method of the class itself takes precedence
        inherited = find_class("celm.flower.strategy", ast.unparse(base))[1].body if methods else []
        functions = {node.name: node for node in inherited if isinstance(node, ast.FunctionDef)} | {
            key: node for key, node in functions.items() if ast.get_docstring(node)
        }
    for method in methods:
        signature = source_signature(f"{name}.{method}", functions[method])
        docs = markdown(ast.get_docstring(functions[method]) or "")
        parts.append(f"#### `{name}.{method}`\n\n```python\n{signature}\n```\n\n{docs}")
    return "\n\n".join(parts)


def find_class(module: str, name: str) -> tuple[str, ast.ClassDef]:
    """Return the source and the node of a class that a module defines or imports."""
    path = _SOURCE / module.replace(".", "/")
    path = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
    source = path.read_text(encoding="utf-8")
    for node in ast.parse(source).body:
        if isinstance(node, ast.ClassDef) and node.name == name:
            return source, node
        if isinstance(node, ast.ImportFrom) and any(alias.name == name for alias in node.names):
            return find_class(node.module or "", name)
    raise LookupError(f"{module} has no class {name}")


def source_signature(name: str, function: ast.FunctionDef) -> str:
    """Return a signature as it is written, one line for each parameter unless it is short."""
    arguments = function.args
    positional = arguments.args[1:]
    defaults = [None] * (len(positional) - len(arguments.defaults)) + [*arguments.defaults]
    lines = [format_argument(*pair) for pair in zip(positional, defaults, strict=True)]
    if arguments.kwonlyargs:
        lines.append("*")
        lines += [
            format_argument(*pair) for pair in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True)
        ]
    returns = "" if function.returns is None else f" -> {ast.unparse(function.returns)}"
    returns = returns.removesuffix(" -> None") if function.name == "__init__" else returns
    line = f"{name}({', '.join(lines)}){returns}"
    return (
        line
        if len(line) <= LINE_LENGTH
        else "\n".join([f"{name}(", *(f"    {text}," for text in lines), f"){returns}"])
    )


def format_argument(argument: ast.arg, default: ast.expr | None) -> str:
    annotation = "" if argument.annotation is None else f": {ast.unparse(argument.annotation)}"
    return f"{argument.arg}{annotation}{'' if default is None else f' = {ast.unparse(default)}'}"
