"""Overrides of settings: `TABLE.KEY=VALUE`, as `--set` takes them."""

from __future__ import annotations

import tomllib
from typing import Any

from celm.base.errors import CelmError, suggest_name
from celm.base.renames import new_setting_name, renamed_hint
from celm.experiment.config import Experiment


def apply_override(tables: dict[str, Any], assignment: str) -> None:
    """Set `table.key=value` or `table=name` in tables. The value is parsed as TOML, or else taken as text.

    >>> tables = {}
    >>> apply_override(tables, "split.alpha=0.05"); apply_override(tables, "dataset.name=digits"); tables
    {'split': {'alpha': 0.05}, 'dataset': {'name': 'digits'}}
    """
    path, equals, text = assignment.partition("=")
    setting = path.strip()
    if not equals or ("." in setting and setting.endswith(".")):
        raise CelmError(f"'{assignment}' is not a setting", "write TABLE.KEY=VALUE, as in split.alpha=0.05")
    table, key = split_setting(setting)
    value = parse_toml_value(text)
    if "." not in setting and not isinstance(value, str):
        raise CelmError(f"'{assignment}' is not a setting", "write TABLE.KEY=VALUE or TABLE=NAME")
    set_value(tables, table, key, value)


def split_setting(setting: str) -> tuple[str, str]:
    """Return table and key of a setting; a table alone means its name.

    >>> split_setting("split.alpha"), split_setting("rule")
    (('split', 'alpha'), ('rule', 'name'))
    """
    table, _, key = setting.partition(".")
    if table not in Experiment.model_fields:
        new_name = new_setting_name(setting)
        hint = renamed_hint(new_name) if new_name else suggest_name(table, Experiment.model_fields)
        raise CelmError(f"unknown setting '{setting}'", hint)
    return table, key or "name"


def parse_toml_value(text: str) -> Any:
    """Parse a value written as in TOML; return other text unchanged.

    >>> parse_toml_value("[1, 2]"), parse_toml_value("digits")
    ([1, 2], 'digits')
    """
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text.strip()


def set_value(tables: dict[str, Any], table: str, key: str, value: Any) -> None:
    """Set one key of a table. A new name drops the settings of the component that was chosen before."""
    settings = tables.setdefault(table, {})
    if isinstance(settings, str):
        settings = tables[table] = {"name": settings}
    if not isinstance(settings, dict):
        raise CelmError(f"'{table}' must be a table of settings, not {settings!r}")
    if key == "name" and settings.get("name") not in (None, value):
        # The number of clients and the seed belong to every split.
        shared_keys = {"clients", "seed"} if table == "split" else set()
        for stale_key in [name for name in settings if name not in shared_keys]:
            del settings[stale_key]
    settings[key] = value
