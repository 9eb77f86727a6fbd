"""One page for each module of `celm.metrics`: its formulas, and what computes them."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from importlib import import_module
from pkgutil import iter_modules
from types import ModuleType
from typing import Any

from formulas import fold_plain_formula, formula_block
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from reference_pages import function_entry
from words import markdown_table, summary_and_body

import celm.metrics as metrics

METRIC_MODULES = [module.name for module in iter_modules(metrics.__path__)]


def on_files(files: Files, config: MkDocsConfig) -> Files:
    for path, text in pages():
        files.append(File.generated(config, path, content=text))
    return files


def pages() -> Iterator[tuple[str, str]]:
    """Path and Markdown of every page, that of the section first."""
    modules = {name: import_module(f"celm.metrics.{name}") for name in METRIC_MODULES}
    rows = [(f"[`{name}`]({name}.md)", summary_and_body(module)[0]) for name, module in modules.items()]
    overview = markdown_table(("metrics", "what they say"), rows)
    yield "metrics/index.md", f"# Metrics\n\n{metrics.__doc__}\n\n{overview}\n"
    for name, module in modules.items():
        yield f"metrics/{name}.md", metric_page(name, module)


def metric_page(name: str, module: ModuleType) -> str:
    headline, body = summary_and_body(module)
    formulas = formula_block("metrics", name)
    parts = [
        f"---\ntitle: {name}\nhide: [toc]\n---\n\n# `{name}`",
        f"**{headline}**",
        formulas,
        fold_plain_formula(body) if formulas else body,
        "## From Python",
        *(
            describe_member(key, value)
            for key, value in vars(module).items()
            if not key.startswith("_") and is_documented(value, module)
        ),
        f"Source: `{module.__name__.replace('.', '/')}.py`",
    ]
    return "\n\n".join(filter(None, parts)) + "\n"


def is_documented(value: Any, module: ModuleType) -> bool:
    """Whether it is the module's own, and says what it is."""
    return getattr(value, "__module__", None) == module.__name__ and bool(inspect.getdoc(value))


def describe_member(name: str, value: Any) -> str:
    """A function by its docstring; a result by its code, in which every field is told."""
    if inspect.isclass(value):
        return f"### `{name}`\n\n```python\n{inspect.getsource(value).rstrip()}\n```"
    return function_entry("###", name, value)
