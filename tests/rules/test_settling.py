"""A warm-up that ends when weights have settled is one that was that long from the start."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import celm
from celm.method.weights import Weights
from celm.rules.celm import Celm


def run(folder: Path, **rule: Any) -> celm.Run:
    settings = {"name": "celm", **rule}
    tables = {"rounds": 6, "workers": 0}
    return celm.run(
        celm.Experiment(dataset="digits", split="pls", rule=settings, probe={"steps": 10}, run=tables),
        out=folder,
    )


def test_settled_at_once_is_a_short_warm_up(tmp_path: Path) -> None:
    short = run(tmp_path / "short", warmup=2)
    settled = run(tmp_path / "settled", warmup=5, settle=0.999, least=2)
    assert settled.weights == short.weights
    ours = settled.model().state_dict()
    assert all(torch.equal(ours[name], tensor) for name, tensor in short.model().state_dict().items())
    assert [record["scores"] is None for record in settled.rounds] == [False] * 2 + [True] * 4


def test_not_settled_is_the_whole_warm_up(tmp_path: Path) -> None:
    whole = run(tmp_path / "whole", warmup=4)
    moving = run(tmp_path / "moving", warmup=4, settle=1e-9)
    assert moving.weights == whole.weights


@pytest.mark.parametrize(
    ("number", "moved", "settled"), [(2, 0.0, False), (3, 0.009, True), (3, 0.011, False), (9, 0.01, True)]
)
def test_the_test_of_settling(number: int, moved: float, settled: bool) -> None:
    before, after = Weights({"a": 0.5, "b": 0.5}), Weights({"a": 0.5 - moved, "b": 0.5 + moved})
    assert Celm(settle=0.01 + 1e-12).settles(number, before, after) is settled


def test_a_newcomer_is_measured_from_where_it_starts() -> None:
    before, after = Weights({"a": 1.0}), Weights({"a": 0.5, "b": 0.5})
    assert Celm(settle=0.01).settles(5, before, after)
