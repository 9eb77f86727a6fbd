"""Folders of runs, federations and studies, written by hand, so that the right report is known."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from celm.base.files import dump_json
from celm.base.json_files import append_jsonl
from celm.experiment.config import Experiment
from celm.records.hash_chain import GENESIS, json_digest
from celm.runs.run_folder import RunFolder

CLIENTS = ["client-0", "client-1", "client-2"]
MEMBERS = ["north", "south", "east"]
CLASSES = ["cat", "dog", "owl", "yak"]


def write_run(
    path: Path, names: list[str] = CLIENTS, classes: list[str] = CLASSES, probed: int = 2, **changes: Any
) -> Path:
    """Write a finished run. Client 0 has evidence for the first two classes, client 1 for the last three.

    `probed` of its three rounds have evidence.
    """
    a, b, c = names
    evidence = {a: [1.0, 2.0, 0.0, 0.0], b: [0.0, 0.5, 3.0, 0.25], c: [0.0, 0.0, 0.0, 0.0]}
    weights = {a: 0.4, b: 0.5, c: 0.1}
    result = {
        "schema_version": 1,
        "dataset": "digits",
        "split": "pls",
        "model": "mlp",
        "rule": "celm",
        "objective": "plain",
        "seed": 42,
        "rounds": 3,
        "accuracy": 0.75,
        "balanced_accuracy": 0.5,
        "rare_class_accuracy": 0.125,
        "per_class": [1.0, 0.75, 0.5, 0.125],
        "client_accuracy": None,
        "weights": weights,
        "evidence": evidence,
        "observed": {"shapfed": {a: 0.3, b: 0.3, c: 0.4}},
        "classes": classes,
        "counts": {a: [10, 20, 0, 0], b: [0, 5, 30, 4], c: [1, 0, 0, 0]},
        "rare_classes": [3],
        "free_riders": [c],
        "seconds": 75.0,
        **changes,
    }
    folder = RunFolder.create(
        path,
        Experiment.parse({"observe": [{"name": "shapfed"}], "run": {"rounds": 3, "seed": result["seed"]}}),
    )
    for number in (1, 2, 3):
        folder.append_round(
            {
                "round": number,
                "lr": 0.1,
                "clients": names,
                "excluded": {c: "has a value that is not finite"} if number > 1 else {},
                "weights": weights,
                "client_weights": weights,
                "scores": {a: 0.5, b: 0.5 - 0.1 * number, c: 0.1 * number} if number < 3 else None,
                "evidence": evidence if number <= probed else None,
                "diagnostics": {},
                "accuracy": 0.25 * number,
                "balanced_accuracy": 0.2 * number,
                "rare_class_accuracy": 0.04 * number,
            },
            {"total": 1.0},
        )
    start = {"time": "2026-05-01T10:00:00+00:00", "python": "3.12.1", "system": "Linux", "machine": "x86_64"}
    start |= {"cpu": "AVX2", "cores": 2, "threads": 1, "versions": {"celm": "0.1.0"}}
    folder.write_json("environment.json", {"schema_version": 1, "starts": [start]})
    folder.write_json("result.json", result)
    return path


def write_state(path: Path, names: list[str] = MEMBERS, probed: int = 2, **changes: Any) -> Path:
    """Write four rounds of six. Client c joins in round 2, fails in 3 and is idle in 4; `changes` are of round 4."""
    a, b, c = names
    settings: dict[str, Any] = {
        "schema_version": 1,
        "rule": {"name": "celm", "warmup": 2, "evidence": "paper"},
        "probe": {"steps": 200},
        "rounds": 6,
        "seed": 42,
        "classes": 4,
        "model": {"0.weight": [5, 6]},
    }
    evidence = {a: [1.0, 2.0, 0.0, 0.0], b: [0.0, 0.5, 3.0, 0.25], c: [0.0, 0.0, 0.0, 0.0]}
    path.mkdir(parents=True)
    previous = GENESIS
    for number in (1, 2, 3, 4):
        present = [a, b] if number in (1, 3) else names
        client_weights = {a: 0.5, b: 0.5} if number == 1 else {a: 0.5, b: 0.4, c: 0.1}
        record = {
            "schema_version": 1,
            "round": number,
            "time": f"2026-05-0{number}T10:00:00+00:00",
            "asked": [a, b] if number == 1 else names,
            "absent": [],
            "received": {name: {"sha256": "f" * 64, "samples": 0} for name in present},
            "excluded": {c: "no reply in time"} if number == 3 else {},
            "unexpected": [],
            "weights": {name: client_weights[name] for name in present},
            "client_weights": client_weights,
            "scores": {name: 1 / len(present) for name in present} if number < 3 else None,
            "evidence": {name: evidence[name] for name in present} if number <= probed else None,
            "diagnostics": {"idle": [c], "movement": {a: 1.0, b: 0.9, c: 0.01}} if number == 4 else {},
            "metrics": None,
            "start": "0" * 64,
            "model": "e" * 64,
            "versions": {"celm": "0.1.0", "flwr": "1.42.0"},
            **(changes if number == 4 else {}),
            "settings": json_digest(settings),
            "previous": previous,
        }
        append_jsonl(path / "rounds.jsonl", record)
        previous = json_digest(record)
    (path / "settings.json").write_text(dump_json(settings, indent=2))
    failure = {"schema_version": 1, "round": 3, "attempt": 1, "excluded": {b: "replied 2 times"}}
    append_jsonl(path / "failures.jsonl", failure)
    return path


@pytest.fixture
def state() -> Callable[..., Path]:
    return write_state


@pytest.fixture
def handmade() -> Callable[..., Path]:
    return write_run


@pytest.fixture
def study(tmp_path: Path) -> Path:
    """Write a study of two methods and two seeds, whose table has the paper's value for one cell."""
    folder = tmp_path / "study"
    cells = []
    for method, mean in (("fedavg", 0.6), ("celm", 0.75)):
        for seed in (42, 43):
            run = write_run(folder / f"{method}-seed{seed}", rule=method, seed=seed, accuracy=mean)
            settings = (run / "settings.toml").read_text().replace('name = "celm"', f'name = "{method}"')
            (run / "settings.toml").write_text(settings)
        cells.append({"row": method, "column": "accuracy", "mean": mean, "std": 0.01, "count": 2, "place": 2})
    cells[1] |= {"place": 1, "paper_mean": 0.8, "paper_std": 0.02, "difference": -0.05}
    cells.append({"row": "fedrs", "column": "accuracy", "mean": None})
    (folder / "table.json").write_text(json.dumps({"title": "digits, pls", "cells": cells}))
    return folder
