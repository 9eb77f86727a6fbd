"""The command that repeats a run: what differs from the defaults, and nothing else."""

from __future__ import annotations

import json
import shlex
from collections.abc import Sequence
from itertools import takewhile
from typing import Any

from celm.federation.experiment import Experiment

OPTIONS = {
    ("dataset", "name"): "--dataset",
    ("split", "name"): "--split",
    ("split", "clients"): "--clients",
    ("model", "name"): "--model",
    ("rule", "name"): "--rule",
    ("objective", "name"): "--objective",
    ("run", "rounds"): "--rounds",
    ("run", "seed"): "--seed",
    ("run", "participation"): "--participation",
    ("run", "device"): "--device",
}
ALWAYS = {("dataset", "name"), ("split", "name"), ("rule", "name"), ("run", "rounds"), ("run", "seed")}
"""Said though they be defaults: what a reader wants to see first."""


NEVER = {("run", "workers")}
"""Changes no result."""


def arguments(experiment: Experiment) -> list[str] | None:
    """Arguments of `celm run`; None where only a file of settings can say it."""
    tables, usual = experiment.tables(), Experiment().tables()
    if any(set(choice) != {"name"} or "," in choice["name"] for choice in tables.pop("observe", [])):
        return None
    said: list[str] = []
    settings: list[str] = []
    for table, values in tables.items():
        for key, value in values.items():
            place = (table, key)
            unsaid = value == "" or (place not in ALWAYS and value == usual.get(table, {}).get(key))
            if place in NEVER or unsaid:
                continue
            # The user's own folder is a name and a path, which --set says as well.
            option = None if place == ("dataset", "name") and value == "folder" else OPTIONS.get(place)
            if option is not None:
                said += [option, str(value)]
                continue
            written = toml(value)
            if written is None:
                return None
            settings += ["--set", f"{table}.{key}={written}"]
    observers = [choice.name for choice in experiment.observe]
    watching = ["--observe", ",".join(observers)] if observers else []
    return said + watching + settings


def command_parts(experiment: Experiment) -> list[str]:
    """The line for the shell, an option with its value a part; by a file of settings where options cannot say all."""
    given = arguments(experiment)
    if given is None:
        return ["celm run", "experiment.toml"]
    return ["celm run", *(shlex.join(pair) for pair in zip(given[::2], given[1::2], strict=True))]


def in_parts(arguments: Sequence[str]) -> list[str]:
    """A command for the shell, an option with its value a part.

    >>> in_parts(["celm", "study", "main", "--only", "split=pls seed=42"])
    ['celm study main', "--only 'split=pls seed=42'"]
    """
    head = list(takewhile(lambda argument: not argument.startswith("--"), arguments))
    pairs = [arguments[i : i + 2] for i in range(len(head), len(arguments), 2)]
    return [shlex.join(part) for part in (head, *pairs)]


def toml(value: Any) -> str | None:
    """A value as TOML on one line; None for tables.

    >>> toml(0.5), toml("a b"), toml([50, 60]), toml(True)
    ('0.5', '"a b"', '[50, 60]', 'true')
    """
    if isinstance(value, dict) or (isinstance(value, list) and any(isinstance(v, dict) for v in value)):
        return None
    return json.dumps(value, ensure_ascii=False)
