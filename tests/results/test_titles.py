"""Titles of runs say what differs from the defaults, and call own data by its folder."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from PIL import Image

import celm


def test_a_runs_title_says_alpha_clients_and_batch(tmp_path: Path) -> None:
    split = {"name": "dirichlet", "alpha": 0.5, "clients": 3}
    experiment = celm.Experiment(rule="fedavg", split=split, rounds=1, train={"batch": 64})
    run = celm.run(experiment, tmp_path / "run")
    assert repr(run).startswith("Run(fedavg digits dirichlet 0.5 3 clients batch 64: 1 round,")
    page = run.report(tmp_path / "page.html").read_text(encoding="utf-8")
    assert "digits, random label skew (Dirichlet 0.5), 3 clients, batch 64, fedavg" in page


def test_own_data_are_called_by_their_folder(tmp_path: Path) -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (2, 10, 6, 6, 3), dtype=np.uint8)
    for name, images in zip(("finch", "wren"), pixels, strict=True):
        (tmp_path / "birds" / name).mkdir(parents=True)
        for i, image in enumerate(images):
            Image.fromarray(image).save(tmp_path / "birds" / name / f"{i}.png")
    experiment = celm.Experiment(dataset=tmp_path / "birds", split="iid", clients=2, rule="fedavg", rounds=1)
    run = celm.run(experiment, tmp_path / "run")
    assert repr(run).startswith("Run(fedavg birds iid 2 clients: ")
    assert "birds, equal parts (IID), 2 clients, fedavg" in run.report(tmp_path / "page.html").read_text(
        "utf-8"
    )
