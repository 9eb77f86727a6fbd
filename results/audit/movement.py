"""Measure which clients the audit flags as idle: CELM_DATA=... python results/audit/movement.py

With calibrated evidence an audit reports how far each client moved the global model, relative to the others (d of
celm/core/idle_detection.py). A client with d below 0.22 did not train. These splits were explored before this protocol
was written, but no constant was chosen on them. The threshold is that of the rule, chosen on
FashionMNIST at seeds 42 and 43.

1. Train six rounds with the rule celm at the paper's settings for 100 rounds: clients keep their own heads in the first
   five. Digits at seeds 42 and 43, rounds 1, 3, 5 and 6; FashionMNIST at seed 44, rounds 1, 5 and 6; seven splits.
2. Audit the uploads of each such round against the global model that the round started from. Add one upload: a copy of
   that model with Gaussian noise (in units of each tensor's standard deviation) and its head times ten. Two starts;
   all other settings at their defaults.
3. Record the least d of clients that trained, on any data, and the d of the copy.

The results are written to movement.json beside this file.
"""

from __future__ import annotations

import json
from typing import Any

import torch
from measure import HERE, RecordingEngine
from torch import Tensor

import celm
from celm.base.files import write_text
from celm.experiment.config import Experiment
from celm.federation.build import Federation, build_federation, resolve_defaults
from celm.federation.round import initial_state, run_round

SPLITS = ("iid", "pls", "sls", "dirichlet", "maverick", "free_rider", "frm")
FEDERATIONS = {("digits", 42): (1, 3, 5, 6), ("digits", 43): (1, 3, 5, 6), ("fashion_mnist", 44): (1, 5, 6)}
NOISE = (0.001, 0.1)


def disguised_copy(global_model: dict[str, Tensor], noise: float) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(1)
    noisy = {
        name: tensor + noise * tensor.std() * torch.randn(tensor.shape, generator=generator)
        for name, tensor in global_model.items()
    }
    return {name: 10 * tensor if name.startswith("head.") else tensor for name, tensor in noisy.items()}


def audit_with_copy(
    federation: Federation, global_model: dict[str, Tensor], sent: dict[str, Any], noise: float
) -> Any:
    context = federation.context
    clients = {name: result.update.model for name, result in sent.items()}
    return celm.audit(
        global_model,
        {**clients, "copy": disguised_copy(global_model, noise)},
        model=context.module,
        classes=context.classes,
        input_shape=context.input_shape,
        evidence="calibrated",
        num_starts=2,
    )


def measure(dataset: str, split: str, seed: int, rounds: tuple[int, ...]) -> list[dict[str, Any]]:
    run = {"rounds": 100, "seed": seed, "workers": 0, "evaluate_every": 100}
    tables = {"dataset": dataset, "split": split, "rule": "celm", "run": run}
    federation = build_federation(resolve_defaults(Experiment.parse(tables)))
    engine, state, cells = RecordingEngine(federation.trainer), initial_state(federation), []
    for number in range(1, max(rounds) + 1):
        global_model = dict(state.model)
        state = run_round(federation, state, engine).state
        for noise in NOISE if number in rounds else ():
            audit = audit_with_copy(federation, global_model, engine.sent, noise)
            movement = dict(audit.document["movement"])
            labels = {"dataset": dataset, "split": split, "seed": seed, "round": number, "noise": noise}
            copy = movement.pop("copy")
            cells.append(
                {**labels, "least": min(movement.values()), "copy": copy, "score": audit.scores["copy"]}
            )
            print(cells[-1], flush=True)
    return cells


if __name__ == "__main__":
    torch.set_num_threads(1)
    cells = [
        cell
        for (dataset, seed), rounds in FEDERATIONS.items()
        for split in SPLITS
        for cell in measure(dataset, split, seed, rounds)
    ]
    write_text(HERE / "movement.json", json.dumps(cells, indent=1) + "\n")
    print("audits", len(cells), "least", min(cell["least"] for cell in cells))
    for noise in NOISE:
        print("noise", noise, "copy at most", max(cell["copy"] for cell in cells if cell["noise"] == noise))
