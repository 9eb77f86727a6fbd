"""The settings of an experiment that differ from the defaults, as names of folders and titles, and as a command."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from pathlib import PurePath
from typing import Any

import tomli_w

from celm.experiment.component_config import SplitConfig
from celm.experiment.config import Experiment, RunConfig

_UNNAMED = {
    "run.seed",
    "split.seed",
    "run.workers",
    "run.threads",
    "run.device",
    "dataset.path",
    "dataset.repo",
}
"""Settings that have a place of their own in a name, or do not define another experiment."""
_MAX_NAME_LENGTH = 120


def changed_settings(experiment: Experiment) -> dict[str, Any]:
    """Return full name to value of every setting that differs from its default.

    >>> changed_settings(Experiment(split={"name": "dirichlet", "alpha": 0.05}, train={"batch": 32}))
    {'split.name': 'dirichlet', 'split.alpha': 0.05, 'train.batch': 32}
    """
    defaults = Experiment().to_dict()
    changed = {}
    for table, values in experiment.to_dict().items():
        if not isinstance(values, Mapping):  # the observers
            if values:
                changed[table] = values
            continue
        for key, value in values.items():
            if defaults.get(table, {}).get(key) != value:
                changed[f"{table}.{key}"] = value
    return changed


def data_parts(experiment: Experiment) -> list[str]:
    """Return dataset and split as they are named: own data by its folder, a split with its alpha.

    >>> data_parts(Experiment(split={"name": "dirichlet", "alpha": 0.05}))
    ['digits', 'dirichlet-0.05']
    """
    options = experiment.dataset.options
    path = options.get("path", options.get("repo"))
    dataset = (
        PurePath(path).name if isinstance(path, str) and PurePath(path).name else experiment.dataset.name
    )
    alpha = experiment.split.options.get("alpha")
    split = experiment.split.name + (f"-{alpha}" if experiment.split.name and alpha is not None else "")
    return [part for part in (dataset, split) if part]


def distinguishing_parts(experiment: Experiment) -> list[str]:
    """Return all other settings that differ from the defaults, except those of rule and objective, as `key-value`.

    >>> distinguishing_parts(Experiment(train={"batch": 32}, split={"clients": 10}, model="cnn"))
    ['10-clients', 'cnn', 'batch-32']
    """
    parts = []
    for setting, value in changed_settings(experiment).items():
        table, _, key = setting.partition(".")
        if setting in _UNNAMED or table in ("rule", "objective"):
            continue
        if setting in ("dataset.name", "split.name") or (setting == "split.alpha" and experiment.split.name):
            continue
        if key == "object":
            parts.append(value[:6])
        elif table == "observe":
            parts.append("observe-" + "-".join(observer["name"] for observer in value))
        elif key == "name":
            parts.append(str(value))
        elif setting == "model.weights" and experiment.model.name == "hf":
            parts[-1] = PurePath(value).name or "hf"  # the name alone says as much as hf-weights-NAME
        elif key in ("clients", "rounds") and isinstance(value, int):
            parts.append(f"{value}-{key}")
        else:
            parts.append(f"{key}-{_plain(value)}")
    return parts


def run_title_parts(experiment: Experiment) -> list[str]:
    """Return the words of a run's title: data, split, and settings of the training that differ from the defaults.

    A run's settings are resolved, so those that depend on the dataset or the rule are left out.

    >>> run_title_parts(Experiment(split={"name": "dirichlet", "alpha": 0.05, "clients": 10}, train={"batch": 32}))
    ['digits', 'dirichlet 0.05', '10 clients', 'batch 32']
    """
    train = experiment.train.model_copy(update={"lr": None})
    split = SplitConfig(clients=experiment.split.clients)
    run = RunConfig(participation=experiment.run.participation)
    shown = Experiment(split=split, train=train, probe=experiment.probe, run=run)
    return [as_words(part) for part in (*data_parts(experiment), *distinguishing_parts(shown))]


def as_words(part: str) -> str:
    """Return a part of a folder's name as words of a title.

    >>> as_words("dirichlet-0.05"), as_words("batch-32"), as_words("1-clients")
    ('dirichlet 0.05', 'batch 32', '1 client')
    """
    return re.sub(r"^1 (\w+)s$", r"1 \1", part.replace("-", " ", 1))


def method_parts(experiment: Experiment) -> list[str]:
    """Return the settings of rule and objective that were given, as `key-value`.

    >>> method_parts(Experiment(rule={"name": "celm", "beta": 0.8}))
    ['beta-0.8']
    """
    options = {**experiment.rule.options, **experiment.objective.options}
    return [f"{key}-{_plain(value)}" for key, value in options.items()]


def file_name(parts: list[str]) -> str:
    """Join parts to a name of a folder. A long name is cut and ends in a digest, so that it stays distinct.

    >>> file_name(["digits", "dirichlet-0.05", "my rule"]), len(file_name(["x" * 500]))
    ('digits-dirichlet-0.05-my_rule', 120)
    """
    name = re.sub(r"[^A-Za-z0-9_+.-]", "_", "-".join(parts))
    if len(name) <= _MAX_NAME_LENGTH:
        return name
    digest = hashlib.sha256("-".join(parts).encode()).hexdigest()[:8]
    return f"{name[: _MAX_NAME_LENGTH - 9]}-{digest}"


def command_arguments(experiment: Experiment) -> list[str]:
    """Return the arguments of a command for the same experiment.

    >>> command_arguments(Experiment(split="iid", train={"batch": 32}))
    ['--set', 'split.name="iid"', '--set', 'train.batch=32']
    """
    arguments: list[str] = []
    for setting, value in changed_settings(experiment).items():
        if setting != "observe":  # observers are not an option of every command
            text = tomli_w.dumps({"value": value}).removeprefix("value = ").strip()
            arguments += ["--set", f"{setting}={' '.join(text.split())}"]
    return arguments


def _plain(value: Any) -> str:
    if isinstance(value, list | tuple):
        return "-".join(map(_plain, value))
    return PurePath(value).name if isinstance(value, str) and "/" in value else str(value)
