"""A commented experiment file with every setting, its default and its meaning."""

from __future__ import annotations

import json
from typing import Any

from pydantic import BaseModel

from celm.attacks import attacks
from celm.base.registry import Registry
from celm.data.registry import datasets, splits
from celm.experiment.config import Experiment
from celm.models import models
from celm.objectives import objectives
from celm.rules import rules
from celm.rules.robust import aggregators, filters

REQUIRED_TABLES: dict[str, tuple[Registry[Any], str]] = {
    "dataset": (datasets, "digits"),
    "split": (splits, "frm"),
    "model": (models, "mlp"),
    "rule": (rules, "celm"),
    "objective": (objectives, "plain"),
}
"""Table -> registry and default name."""

CHOSEN_SETTINGS = {("split", "kind"): "copy_global"}
"""Table and setting to the value of the default experiment, if it is not that of the component."""

OPTIONAL_TABLES: dict[str, tuple[Registry[Any], str, str]] = {
    "filter": (filters, "clip_norm", "A filter acts on client updates before weights are computed:"),
    "aggregator": (aggregators, "median", "A robust aggregator replaces the weighted mean:"),
}
"""Table -> registry, example name and comment."""


def render_template() -> str:
    """Return the text of an experiment file with the defaults; commented lines show them."""
    lines = [
        "# An experiment for `celm run`. Commented lines show the defaults; ... is chosen automatically.",
        "",
        _commented_line("observe", (), Experiment.model_fields["observe"].description),
        "",
    ]
    for table, field in Experiment.model_fields.items():
        config_type = field.annotation
        if not (isinstance(config_type, type) and issubclass(config_type, BaseModel)):
            continue
        lines.append(f"[{table}]")
        if table in REQUIRED_TABLES:
            registry, default_name = REQUIRED_TABLES[table]
            lines.append(f"name = {_to_toml_value(default_name)}  # {', '.join(registry.names())}")
            lines += [_setting_line(table, setting) for setting in registry.settings(default_name)]
        default = field.get_default(call_default_factory=True)
        for name, inner_field in config_type.model_fields.items():
            if name not in ("name", "object"):
                lines.append(_commented_line(name, getattr(default, name), inner_field.description))
        lines.append("")
    for table, (optional, example, description) in OPTIONAL_TABLES.items():
        names = ", ".join(optional.names())
        lines += [f"# {description}", f"# [{table}]", f"# name = {_to_toml_value(example)}  # {names}", ""]
    lines += ["# One adversarial client:", "# [attack]"]
    lines += [f'# name = "copy_global"  # {", ".join(attacks.names())}', '# client = "client-0"', ""]
    return "\n".join(lines)


def _setting_line(table: str, setting: dict[str, str]) -> str:
    comment = f"  # {setting['about']}" if setting["about"] else ""
    if chosen := CHOSEN_SETTINGS.get((table, setting["name"])):
        return f"{setting['name']} = {_to_toml_value(chosen)}{comment}"
    return f"# {setting['name']} = {setting['default']}{comment}"


def _commented_line(name: str, value: Any, description: str | None) -> str:
    value_text = _to_toml_value(value) if value is not None else "..."
    return f"# {name} = {value_text}" + (f"  # {' '.join(description.split())}" if description else "")


def _to_toml_value(value: Any) -> str:
    return json.dumps(value)  # TOML and JSON write text, numbers, booleans and lists alike
