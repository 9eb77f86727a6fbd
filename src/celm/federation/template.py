"""An experiment file with every setting, its default and what it means."""

from __future__ import annotations

import json
from typing import Any

from pydantic import BaseModel

from celm.attacks import attacks
from celm.base.registry import Registry
from celm.data.catalogue import datasets, splits
from celm.federation.experiment import Experiment
from celm.models import models
from celm.objectives import objectives
from celm.rules import rules
from celm.rules.robust import combines, filters

CHOICES: dict[str, tuple[Registry[Any], str]] = {
    "dataset": (datasets, "digits"),
    "split": (splits, "pls"),
    "model": (models, "mlp"),
    "rule": (rules, "celm"),
    "objective": (objectives, "plain"),
}

OPTIONAL: dict[str, tuple[Registry[Any], str, str]] = {
    "filter": (filters, "clip_norm", "Updates are looked at before they are weighed:"),
    "combine": (combines, "median", "Something sturdier than the mean:"),
}


def commented_experiment() -> str:
    """TOML that means the defaults: what is commented out is what already holds."""
    lines = [
        "# An experiment for `celm run`. Commented lines show the defaults; ... is chosen by itself.",
        "",
        commented("observe", (), Experiment.model_fields["observe"].description),
        "",
    ]
    for table, field in Experiment.model_fields.items():
        kind = field.annotation
        if not (isinstance(kind, type) and issubclass(kind, BaseModel)):
            continue
        lines.append(f"[{table}]")
        if table in CHOICES:
            registry, chosen = CHOICES[table]
            lines.append(f"name = {quoted(chosen)}  # {', '.join(registry.names())}")
            lines += [setting_line(setting) for setting in registry.settings(chosen)]
        default = field.get_default(call_default_factory=True)
        for name, inner in kind.model_fields.items():
            if name != "name":
                lines.append(commented(name, getattr(default, name), inner.description))
        lines.append("")
    for table, (optional, example, about) in OPTIONAL.items():
        names = ", ".join(optional.names())
        lines += [f"# {about}", f"# [{table}]", f"# name = {quoted(example)}  # {names}", ""]
    lines += ["# One client that does not play fair:", "# [attack]"]
    lines += [f'# name = "copy_global"  # {", ".join(attacks.names())}', '# client = "client-0"', ""]
    return "\n".join(lines)


def setting_line(setting: dict[str, str]) -> str:
    about = f"  # {setting['about']}" if setting["about"] else ""
    return f"# {setting['name']} = {setting['default']}{about}"


def commented(name: str, value: Any, about: str | None) -> str:
    shown = quoted(value) if value is not None else "..."
    return f"# {name} = {shown}" + (f"  # {' '.join(about.split())}" if about else "")


def quoted(value: Any) -> str:
    """A value as TOML writes it."""
    return json.dumps(value)  # for text, numbers, truth values and lists the two agree
