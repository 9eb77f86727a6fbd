"""A warm-up that ends early gives the same run as a warm-up of that length."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

import celm


def run(folder: Path, **rule: Any) -> celm.Run:
    settings = {"name": "celm", **rule}
    run_settings = {"rounds": 6, "workers": 0}
    return celm.run(
        celm.Experiment(dataset="digits", split="pls", rule=settings, probe={"steps": 10}, run=run_settings),
        out=folder,
    )


def test_convergence_in_round_2_is_a_warm_up_of_2_rounds(tmp_path: Path) -> None:
    short = run(tmp_path / "short", warmup=2)
    converged = run(tmp_path / "converged", warmup=5, warmup_tolerance=0.999, min_warmup=2)
    assert converged.weights == short.weights
    model = converged.model().state_dict()
    assert all(torch.equal(model[name], tensor) for name, tensor in short.model().state_dict().items())
    assert [record["scores"] is None for record in converged.rounds] == [False] * 2 + [True] * 4


def test_without_convergence_the_warm_up_lasts_t_w_rounds(tmp_path: Path) -> None:
    full = run(tmp_path / "full", warmup=4)
    moving = run(tmp_path / "moving", warmup=4, warmup_tolerance=1e-9)
    assert moving.weights == full.weights
