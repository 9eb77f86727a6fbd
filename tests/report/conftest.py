"""Run folders written by hand, so that what a report must say is known; and real ones."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from celm.base.files import dump_json
from celm.federation.chain import FIRST, digest_of
from celm.federation.experiment import Experiment
from celm.federation.folder import Folder, append_line

CLIENTS = ["client-0", "client-1", "client-2"]
MEMBERS = ["north", "south", "east"]
CLASSES = ["cat", "dog", "owl", "yak"]


def write_run(path: Path, names: list[str] = CLIENTS, classes: list[str] = CLASSES, **changes: Any) -> Path:
    """Client 0 has evidence for the first two classes, client 1 for the last three, client 2 for none."""
    a, b, c = names
    evidence = {a: [1.0, 2.0, 0.0, 0.0], b: [0.0, 0.5, 3.0, 0.25], c: [0.0, 0.0, 0.0, 0.0]}
    weights = {a: 0.4, b: 0.5, c: 0.1}
    result = {
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
    folder = Folder.create(
        path,
        Experiment.parse({"observe": [{"name": "shapfed"}], "run": {"rounds": 3, "seed": result["seed"]}}),
    )
    for number in (1, 2, 3):
        folder.add_round(
            {
                "round": number,
                "lr": 0.1,
                "clients": names,
                "excluded": {c: "has a value that is not finite"} if number > 1 else {},
                "weights": weights,
                "standing": weights,
                "scores": {a: 0.5, b: 0.5 - 0.1 * number, c: 0.1 * number} if number < 3 else None,
                "evidence": evidence if number < 3 else None,
                "accuracy": 0.25 * number,
                "balanced_accuracy": 0.2 * number,
                "rare_class_accuracy": 0.04 * number,
            },
            {"total": 1.0},
        )
    folder.write_json("facts.json", {"starts": [{"versions": {"celm": "0.1.0"}, "cores": 2}]})
    folder.write_json("result.json", result)
    return path


def write_state(path: Path, names: list[str] = MEMBERS, **changes: Any) -> Path:
    """Four rounds of six: c joins in round 2, fails in 3 and is idle in 4; two rounds were probed."""
    a, b, c = names
    settings: dict[str, Any] = {
        "rule": {"name": "celm", "warmup": 2, "evidence": "paper"},
        "probe": {"steps": 200},
        "rounds": 6,
        "seed": 42,
        "classes": 4,
        "model": {"0.weight": [5, 6]},
    }
    evidence = {a: [1.0, 2.0, 0.0, 0.0], b: [0.0, 0.5, 3.0, 0.25], c: [0.0, 0.0, 0.0, 0.0]}
    path.mkdir(parents=True)
    previous = FIRST
    for number in (1, 2, 3, 4):
        present = [a, b] if number in (1, 3) else names
        standing = {a: 0.5, b: 0.5} if number == 1 else {a: 0.5, b: 0.4, c: 0.1}
        record = {
            "round": number,
            "time": f"2026-05-0{number}T10:00:00+00:00",
            "asked": [a, b] if number == 1 else names,
            "absent": [],
            "received": {name: {"sha256": "f" * 64, "samples": 0} for name in present},
            "excluded": {c: "no reply in time"} if number == 3 else {},
            "strays": [],
            "weights": {name: standing[name] for name in present},
            "standing": standing,
            "scores": {name: 1 / len(present) for name in present} if number < 3 else None,
            "evidence": {name: evidence[name] for name in present} if number < 3 else None,
            "diagnostics": {"idle": [c], "movement": {a: 1.0, b: 0.9, c: 0.01}} if number == 4 else {},
            "metrics": None,
            "start": "0" * 64,
            "model": "e" * 64,
            "versions": {"celm": "0.1.0", "flwr": "1.42.0"},
            **(changes if number == 4 else {}),
            "settings": digest_of(settings),
            "previous": previous,
        }
        append_line(path / "rounds.jsonl", record)
        previous = digest_of(record)
    (path / "settings.json").write_text(dump_json(settings, indent=2))
    append_line(path / "failures.jsonl", {"round": 3, "attempt": 1, "excluded": {b: "replied 2 times"}})
    return path


@pytest.fixture
def state() -> Callable[..., Path]:
    return write_state


@pytest.fixture
def handmade() -> Callable[..., Path]:
    return write_run


@pytest.fixture
def study(tmp_path: Path) -> Path:
    """Two methods, two seeds, a table with the paper's figure for one cell."""
    folder = tmp_path / "study"
    cells = []
    for method, mean in (("fedavg", 0.6), ("celm", 0.75)):
        for seed in (42, 43):
            place = write_run(folder / f"{method}-seed{seed}", rule=method, seed=seed, accuracy=mean)
            settings = (place / "settings.toml").read_text().replace('name = "celm"', f'name = "{method}"')
            (place / "settings.toml").write_text(settings)
        cells.append({"row": method, "column": "accuracy", "mean": mean, "std": 0.01, "count": 2, "place": 2})
    cells[1] |= {"place": 1, "paper_mean": 0.8, "paper_std": 0.02, "difference": -0.05}
    cells.append({"row": "fedrs", "column": "accuracy", "mean": None})
    (folder / "table.json").write_text(json.dumps({"title": "digits, pls", "cells": cells}))
    return folder
