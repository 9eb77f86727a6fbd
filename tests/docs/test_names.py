"""Names in the documentation exist: modules and functions, settings, options, files of the repository."""

from __future__ import annotations

import importlib
import re
import tomllib
from pathlib import Path
from typing import Any

import pytest
import typer

from celm.attacks import attacks
from celm.cli.app import app
from celm.data.registry import datasets, splits
from celm.experiment.config import Experiment
from celm.models import models
from celm.objectives import objectives
from celm.rules import rules
from celm.rules.robust import aggregators, filters

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted(
    str(path.relative_to(ROOT))
    for pattern in ("*.md", "docs/*.md", "results/*.md", "results/*/*.md", "examples/*/README.md")
    for path in ROOT.glob(pattern)
)
EVERY_PAGE = pytest.mark.parametrize("page", PAGES)
REGISTRIES = {
    "dataset": datasets,
    "split": splits,
    "model": models,
    "rule": rules,
    "objective": objectives,
    "filter": filters,
    "aggregator": aggregators,
    "attack": attacks,
}
ENTRY_POINTS = {f"celm.{kind}" for kind in ("rules", "objectives", "splits", "datasets", "models", "attacks")}
OTHER_SETTINGS = {
    "dataset.noise",
    "run.lock",
    "split.exponent",
    "rule.power",
    "objective.epsilon",
    "model.width",
}
"""Settings of the examples in docs/extending.md; the name of a file."""
OTHER_OPTIONS = re.compile(
    r"^.*\b(?:flwr|flower-\w+|openssl|model_signing|ssh-keygen|pip|python)\b(?:.*\\\n)*.*$", re.MULTILINE
)
"""Commands of other programs, with their options."""


def read(page: str) -> str:
    text = (ROOT / page).read_text(encoding="utf-8")
    if page == "CHANGELOG.md":  # its tables of renames have the old names
        text = re.sub(r"^ *\| .*", "", text, flags=re.MULTILINE)
    return text


@EVERY_PAGE
def test_dotted_names_can_be_imported(page: str) -> None:
    names = set(re.findall(r"\bcelm(?:\.[A-Za-z_]\w*)+", read(page))) - ENTRY_POINTS
    for name in sorted(names):
        assert name.endswith((".md", ".py")) or resolves(name), name


def resolves(name: str) -> bool:
    """Check whether a dotted name is a module, or an attribute of one."""
    parts = name.split(".")
    for end in range(len(parts), 0, -1):
        try:
            value = importlib.import_module(".".join(parts[:end]))
        except ModuleNotFoundError:
            continue
        for part in parts[end:]:
            if not hasattr(value, part):
                return False
            value = getattr(value, part)
        return True
    return False


def options_of(command: Any) -> set[str]:
    options = {
        option for parameter in command.params for option in (*parameter.opts, *parameter.secondary_opts)
    }
    if hasattr(command, "commands"):  # a group; typer may bring its own copy of click
        options |= {option for part in command.commands.values() for option in options_of(part)}
    return options


@EVERY_PAGE
def test_options_exist(page: str) -> None:
    known = options_of(typer.main.get_command(app)) | {"--help"}
    text = OTHER_OPTIONS.sub("", read(page))
    assert set(re.findall(r"(?<![\w-])--[a-z][\w-]*", text)) <= known | {
        "--smoke"
    }  # of results/trust/attacks.py


def settings_of(table: str) -> set[str]:
    """Return the settings that a table of an experiment may have, with any of its components."""
    config = Experiment.model_fields[table].annotation
    settings = set(getattr(config, "model_fields", {"name": None}))
    if table in REGISTRIES:
        registry = REGISTRIES[table]
        settings |= {setting["name"] for name in registry.names() for setting in registry.settings(name)}
    return settings


@EVERY_PAGE
def test_settings_exist(page: str) -> None:
    for table in set(Experiment.model_fields) - {"observe"}:
        found = re.findall(rf"(?<![\w./-]){table}\.([a-z]\w*)(?=[=`\s])", read(page))
        unknown = set(found) - settings_of(table)
        assert {f"{table}.{name}" for name in unknown} <= OTHER_SETTINGS


@EVERY_PAGE
def test_files_of_the_repository_exist(page: str) -> None:
    for name in set(
        re.findall(r"(?<![\w/.])(?:src|tests|docs|results|benchmarks|examples)/[\w./-]*\w", read(page))
    ):
        assert (ROOT / name).exists(), name


def test_contributing_lists_the_packages_in_the_order_of_the_imports():
    tools = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]
    layers = next(c["layers"] for c in tools["importlinter"]["contracts"] if c["type"] == "layers")
    listed = re.findall(
        r"^\| `(\w+)` \|", (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8"), re.MULTILINE
    )
    assert listed == [name for layer in layers[::-1] for name in layer.split(" | ")]


def test_the_landing_page_counts_the_components():
    page = (ROOT / "docs/index.md").read_text(encoding="utf-8")
    for name, registry in {"rules": rules, "objectives": objectives, "splits": splits}.items():
        assert f"{len(registry.builtins)} [{name}](" in page
