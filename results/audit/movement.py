"""Whom the audit takes for idle: CELM_DATA=... python results/audit/movement.py writes movement.json beside it.

With calibrated evidence an audit says how far each client moved the global model beside the others (d of
celm/method/movement.py), and who stays below 0.22 did not train. A first look at these splits came before this
protocol, but no constant was chosen by it; the threshold is that of the rule, from FashionMNIST at seeds 42 and 43.

1. Train six rounds with the rule celm at the paper's settings for 100 rounds: clients keep their own heads in the first
   five. Digits at seeds 42 and 43, rounds 1, 3, 5 and 6; FashionMNIST at seed 44, rounds 1, 5 and 6; seven splits.
2. Audit the uploads of such a round against the global model it began with, together with a copy of that model with
   Gaussian noise (in units of each tensor's deviation) and its head times ten. Two starts; all else at the defaults.
3. Write down the least d of those who trained, on whatever data, and the d of the copy.
"""

from __future__ import annotations

import json
from typing import Any

import torch
from measure import HERE, Keeping
from torch import Tensor

import celm
from celm.base.files import write_text
from celm.federation.assembly import Federation, assemble, resolve
from celm.federation.experiment import Experiment
from celm.federation.rounds import begin, play

SPLITS = ("iid", "pls", "sls", "dirichlet", "maverick", "free_rider", "frm")
FEDERATIONS = {("digits", 42): (1, 3, 5, 6), ("digits", 43): (1, 3, 5, 6), ("fashion_mnist", 44): (1, 5, 6)}
NOISE = (0.001, 0.1)


def copied(start: dict[str, Tensor], noise: float) -> dict[str, Tensor]:
    draw = torch.Generator().manual_seed(1)
    made = {
        name: tensor + noise * tensor.std() * torch.randn(tensor.shape, generator=draw)
        for name, tensor in start.items()
    }
    return {name: 10 * tensor if name.startswith("head.") else tensor for name, tensor in made.items()}


def looked_at(federation: Federation, start: dict[str, Tensor], sent: dict[str, Any], noise: float) -> Any:
    facts = federation.facts
    clients = {name: outcome.update.model for name, outcome in sent.items()}
    return celm.audit(
        start,
        {**clients, "copy": copied(start, noise)},
        model=facts.module,
        classes=facts.classes,
        input_shape=facts.input_shape,
        evidence="calibrated",
        starts=2,
    )


def measure(dataset: str, split: str, seed: int, rounds: tuple[int, ...]) -> list[dict[str, Any]]:
    run = {"rounds": 100, "seed": seed, "workers": 0, "evaluate_every": 100}
    tables = {"dataset": dataset, "split": split, "rule": "celm", "run": run}
    federation = assemble(resolve(Experiment.parse(tables)))
    engine, state, cells = Keeping(federation.workbench), begin(federation), []
    for number in range(1, max(rounds) + 1):
        start = dict(state.model)
        state = play(federation, state, engine).state
        for noise in NOISE if number in rounds else ():
            found = looked_at(federation, start, engine.sent, noise)
            moved = dict(found.document["movement"])
            where = {"dataset": dataset, "split": split, "seed": seed, "round": number, "noise": noise}
            copy = moved.pop("copy")
            cells.append({**where, "least": min(moved.values()), "copy": copy, "score": found.scores["copy"]})
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
