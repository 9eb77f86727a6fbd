"""One page for everything that is chosen by name, made from its registry: docstrings, settings, how to call it.

A name that is registered has its page, and the page says what the code says; there is nothing to keep in step.
"""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Iterator
from typing import Any

from formulas import fold_plain_formula, formula_block
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from words import markdown_table, settings_table, summary_and_body

import celm.rules.robust as robust
from celm.attacks import attacks
from celm.base.registry import Registry
from celm.data.registry import datasets, splits
from celm.models import models
from celm.objectives import objectives
from celm.rules import rules
from celm.rules.rule import Rule

KINDS: dict[str, tuple[Registry[Any], str, str]] = {
    "rules": (
        rules,
        "Server side: client models become weights, and weights a new global model.",
        "--rule {}",
    ),
    "objectives": (objectives, "Client side: what each client minimises.", "--objective {}"),
    "filters": (
        robust.filters,
        "What is done to the updates before they are weighed.",
        "--set filter.name={}",
    ),
    "aggregators": (
        robust.aggregators,
        "What takes the place of the weighted mean.",
        "--set aggregator.name={}",
    ),
    "splits": (splits, "How a dataset is dealt to the clients.", "--split {}"),
    "datasets": (datasets, "What there is to learn from.", "--dataset {}"),
    "models": (models, "What is trained.", "--model {}"),
    "attacks": (attacks, "What a client may do instead of honest work.", "--set attack.name={}"),
}
"""Section to its registry, what it is about, and the option of `celm run` that chooses from it."""


def on_files(files: Files, config: MkDocsConfig) -> Files:
    for path, text in pages():
        files.append(File.generated(config, path, content=text))
    return files


def pages() -> Iterator[tuple[str, str]]:
    """Path and Markdown of every page, those of the sections first."""
    for section, (registry, description, option) in KINDS.items():
        yield f"{section}/index.md", section_page(section, registry, description)
        for name in registry.names():
            yield f"{section}/{name}.md", method_page(section, name, registry, option)


def section_page(section: str, registry: Registry[Any], description: str) -> str:
    rows = [(f"[`{name}`]({name}.md)", registry.summary(name)) for name in registry.names()]
    return f"# {section.capitalize()}\n\n{description}\n\n{markdown_table((registry.kind, 'what it is'), rows)}\n"


def method_page(section: str, name: str, registry: Registry[Any], option: str) -> str:
    kind = registry.load(name)
    schema = registry.schema(name)
    module = sys.modules[kind.__module__]
    (headline, body), (summary, details) = summary_and_body(module), summary_and_body(kind)
    formulas = formula_block(section, name)
    parts = [
        f"---\ntitle: {name}\nhide: [toc]\n---\n\n# `{name}`",
        f"**{headline}** {summary}" if summary != headline else f"**{headline}**",
        formulas,
        fold_plain_formula(body) if formulas else body,
        details,
        "## Settings",
        settings_table(schema) or "It has none.",
        f"```sh\ncelm run {option.format(name)}{example(registry.kind, schema)}\n```",
        describe_requirements(kind) if issubclass(kind, Rule) else "",
        f"Source: `{kind.__module__.replace('.', '/')}.py`",
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def example(table: str, schema: dict[str, Any]) -> str:
    """One setting as an option: what has to be given, else the first that has a default, at that."""
    for name in schema.get("required", []):
        return f" --set {table}.{name}=..."
    for name, field in schema.get("properties", {}).items():
        if field.get("default") is not None:
            value = field["default"] if isinstance(field["default"], str) else json.dumps(field["default"])
            return f" --set {shlex.quote(f'{table}.{name}={value}')}"
    return ""


def describe_requirements(rule: type[Rule[Any]]) -> str:
    """What a rule must be given beyond the client models, as it says itself."""
    requirements = rule.requirements
    parts = [
        "held-out data" if requirements.validation else "",
        "the numbers of samples, as clients report them" if requirements.sizes else "",
        requirements.extra_exchange,
    ]
    return f"It needs, beyond the client models: {'; '.join(filter(None, parts)) or 'nothing'}."
