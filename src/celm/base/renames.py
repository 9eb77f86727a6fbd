"""Old names of settings and options: using one is an error that says the new name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from celm.base.errors import CelmError

_RENAMED_SETTINGS = {
    # experiment
    "rule.reprobe": "rule.idle_check",
    "rule.settle": "rule.warmup_tolerance",
    "rule.least": "rule.min_warmup",
    "rule.fraction": "rule.warmup_fraction",
    "rule.remember": "rule.global_history",
    "combine": "aggregator",
    "probe.keep": "probe.keep_inputs",
    "attack.first": "attack.first_round",
    "attack.last": "attack.last_round",
    # audit
    "returns": "output",
    "hold": "fixed_inputs",
    "starts": "num_starts",
}
"""Old to new name: `table.key`, or a whole table; settings of the audit have no table."""

RENAMED_OPTIONS = {
    "run": {"--reprobe": "--idle-check", "--combine": "--set aggregator.name=NAME"},
    "compare": {"--reprobe": "--set rule.idle_check=WHEN", "--combine": "--set aggregator.name=NAME"},
    "audit": {
        "--starts": "--num-starts",
        "--returns": "--set output=KIND",
        "--hold": "--set fixed_inputs=FILE",
    },
}
"""Command to its old options and their replacements."""


def new_setting_name(setting: str) -> str | None:
    """Return the new name of a renamed setting or of a setting in a renamed table, else None.

    >>> new_setting_name("rule.settle"), new_setting_name("combine.name"), new_setting_name("rule.beta")
    ('rule.warmup_tolerance', 'aggregator.name', None)
    """
    if setting in _RENAMED_SETTINGS:
        return _RENAMED_SETTINGS[setting]
    table, dot, key = setting.partition(".")
    return f"{_RENAMED_SETTINGS[table]}.{key}" if dot and table in _RENAMED_SETTINGS else None


def renamed_hint(new_name: str) -> str:
    """Return the hint of an error about an old name.

    >>> renamed_hint("rule.idle_check")
    "renamed: use 'rule.idle_check'"
    """
    return f"renamed: use '{new_name}'"


def refuse_unknown_arguments(function: str, arguments: Mapping[str, Any]) -> None:
    """Raise an error for the first of `arguments`, keyword arguments that `function` does not have."""
    for name in arguments:
        new_name = new_setting_name(name)
        if new_name is not None:
            raise CelmError(f"unknown argument '{name}' of {function}", renamed_hint(new_name))
        raise TypeError(f"{function} got an unexpected keyword argument '{name}'")
