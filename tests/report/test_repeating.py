"""The command in a report, given to `celm run`, is the same experiment."""

from __future__ import annotations

import shlex
from typing import Any

import pytest

from celm.cli.options import experiment_from
from celm.federation.experiment import Experiment
from celm.report.repeating import arguments, command_parts


def parsed(line: str) -> Experiment:
    """As the command line reads it."""
    words = shlex.split(line)
    assert words[:2] == ["celm", "run"]
    given: dict[str, Any] = {}
    settings = []
    for option, value in zip(words[2::2], words[3::2], strict=True):
        if option == "--set":
            settings.append(value)
            continue
        kind = {"--clients": int, "--rounds": int, "--seed": int, "--participation": float}.get(option, str)
        given[option.removeprefix("--")] = kind(value)
    return experiment_from(None, given, settings)


@pytest.mark.parametrize(
    "tables",
    [
        {"split": {"name": "pls"}, "run": {"rounds": 3}},
        {
            "dataset": {"name": "folder", "path": "/a b/'c'"},
            "split": {"name": "dirichlet", "alpha": 0.05, "clients": 20, "seed": 7},
            "model": {"name": "mlp", "widths": [32, 16]},
            "train": {"lr": 0.05, "decay_at": [10, 20]},
            "rule": {"name": "fedavg"},
            "objective": {"name": "fedprox", "mu": 0.5},
            "observe": [{"name": "celm"}, {"name": "shapfed"}],
            "attack": {"name": "copy_global", "client": "client-1"},
            "run": {"rounds": 5, "seed": 1, "participation": 0.5, "device": "cpu"},
        },
    ],
)
def test_the_command_repeats_the_experiment(tables: dict[str, Any]) -> None:
    experiment = Experiment.parse(tables)
    assert parsed(" ".join(command_parts(experiment))) == experiment


def test_what_options_cannot_say_goes_by_a_file() -> None:
    experiment = Experiment.parse({"observe": [{"name": "celm", "warmup": 3}]})
    assert arguments(experiment) is None
    assert command_parts(experiment) == ["celm run", "experiment.toml"]
