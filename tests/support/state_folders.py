"""Federations of three constant learners whose state is in a folder."""

from __future__ import annotations

import hashlib
import json
import shutil
from pathlib import Path
from typing import Any

from celm.flower import CelmStrategy, ContributionResult
from support.small_grid import Client, SmallGrid, initial, learner, network

_OLDER = Path(__file__).parents[1] / "flower" / "folder_of_an_older_celm"


def clients() -> dict[str, Client]:
    return {"a": learner(0.1, num_examples=3), "b": learner(-0.2), "c": learner(0.3, loss=1.0)}


def strategy(folder: Path | None, **settings: Any) -> CelmStrategy:
    """Return a strategy with two rounds of warm-up."""
    usual: dict[str, Any] = {"fraction_evaluate": 0.0, "retry_wait": 0.0, "probe": {"steps": 3}}
    usual |= {"rule_options": {"warmup": 2}, "preset": None}
    return CelmStrategy(network(), (6,), 3, folder=folder, **{**usual, **settings})


def play(
    folder: Path | None, rounds: int, grid: SmallGrid | None = None, **settings: Any
) -> ContributionResult:
    return strategy(folder, **settings).start(grid or SmallGrid(clients()), initial(), num_rounds=rounds)


def copy_older_folder(tmp_path: Path) -> Path:
    """Copy three rounds of 20 by the celm before amendments, with evaluations of rounds 0 to 2 and one failure."""
    shutil.copytree(_OLDER, tmp_path / "state")
    return tmp_path / "state"


def amendments(result: ContributionResult) -> list[list[tuple[str, Any, Any]]]:
    """Return the amendments of each line."""
    return [
        [(a["setting"], a["before"], a["after"]) for a in line.get("amendments", ())]
        for line in result.records
    ]


def lines_of(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def sha256(line: str) -> str:
    return hashlib.sha256(line.encode()).hexdigest()
