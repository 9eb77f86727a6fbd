"""Measure the audit on checkpoints of FashionMNIST: CELM_DATA=... python results/audit/measure.py; resumable.

Protocol, written before the first measurement. For each of the splits maverick, free_rider and frm (the library's
defaults: five clients) and each seed from 42 to 51:

1. Train five rounds with the rule celm at the paper's settings for 100 rounds, whose warm-up these five are: clients
   keep their own heads. Save the uploads of round 5 and the global model they started from as safetensors.
2. Run `celm audit --global ... --clients ... --model mlp --input-shape 1,28,28 --classes 10` on them, all settings at
   their defaults (5 starts, confidence 0.95), one thread. It sees these six files and nothing else.
3. Count the audit as right on sole holders if it names exactly the rare classes, each with the client that alone holds
   them (none for free_rider); as right on flags if it flags exactly the split's free-riders (nobody for maverick).

What counts as a holding and as a free-rider (celm/auditing/findings.py) was fixed on seeds 1 to 6 of the same splits,
which are not measured here.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from celm.base.files import write_tensors, write_text
from celm.engines.in_process import InProcess
from celm.federation.assembly import assemble, resolve
from celm.federation.experiment import Experiment
from celm.federation.jobs import Job, Outcome
from celm.federation.rounds import begin, play

HERE = Path(__file__).parent
CHECKPOINTS = Path("runs") / "audit"
SPLITS = ("maverick", "free_rider", "frm")
SEEDS = range(42, 52)
ROUNDS = 5
KEPT = ("sole_holders", "flags", "scores", "probe_standard_errors", "z_scores", "holds")


class Keeping(InProcess):
    """The in-process engine, which keeps what the clients sent last."""

    sent: dict[str, Outcome]

    def work(self, jobs: Sequence[Job]) -> list[Outcome]:
        outcomes = super().work(jobs)
        self.sent = {job.client: outcome for job, outcome in zip(jobs, outcomes, strict=True)}
        return outcomes


def train(split: str, seed: int, place: Path) -> dict[str, Any]:
    """Five rounds, the last one's files saved; returns the truth."""
    run = {"rounds": 100, "seed": seed, "workers": 0, "evaluate_every": 100}
    tables = {"dataset": "fashion_mnist", "split": split, "rule": "celm", "run": run}
    federation = assemble(resolve(Experiment.parse(tables)))
    engine, state = Keeping(federation.workbench), begin(federation)
    for _ in range(ROUNDS):
        start = state.model
        state = play(federation, state, engine).state
    place.mkdir(parents=True, exist_ok=True)
    write_tensors(place / "global.safetensors", start, {})
    for client, outcome in engine.sent.items():
        write_tensors(place / f"{client}.safetensors", outcome.update.model, {})
    holders = {
        federation.class_names[k]: [c for c, row in federation.counts.items() if row[k]]
        for k in federation.dealing.rare_classes
    }
    return {"sole_holders": holders, "free_riders": list(federation.dealing.free_riders)}


def audit(place: Path, classes: str) -> dict[str, Any]:
    command = [sys.executable, "-m", "celm", "audit", "--global", str(place / "global.safetensors")]
    command += ["--clients", str(place), "--model", "mlp", "--input-shape", "1,28,28", "--classes", classes]
    done = subprocess.run([*command, "--format", "json"], capture_output=True, text=True, check=True)
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def measure(split: str, seed: int) -> dict[str, Any]:
    target = HERE / "cells" / f"{split}-{seed}.json"
    if target.exists():
        cell: dict[str, Any] = json.loads(target.read_text())
        return cell
    place = CHECKPOINTS / f"{split}-{seed}"
    truth = train(split, seed, place)
    found = audit(place, "T-shirt/top,Trouser,Pullover,Dress,Coat,Sandal,Shirt,Sneaker,Bag,Ankle boot")
    expected = {name: clients[0] for name, clients in truth["sole_holders"].items()}
    cell = {
        "split": split,
        "seed": seed,
        "sole_holders_right": found["sole_holders"] == expected,
        "flags_right": sorted(found["flags"]) == sorted(truth["free_riders"]),
        "truth": {"sole_holders": expected, "free_riders": truth["free_riders"]},
        **{key: found[key] for key in KEPT},
    }
    target.parent.mkdir(exist_ok=True)
    write_text(target, json.dumps(cell, indent=1) + "\n")
    return cell


def table(cells: Sequence[dict[str, Any]]) -> str:
    lines = ["| split | seeds | sole holders right | flags right |", "|---|---|---|---|"]
    for split in SPLITS:
        mine = [cell for cell in cells if cell["split"] == split]
        right = [sum(cell[key] for cell in mine) for key in ("sole_holders_right", "flags_right")]
        lines.append(f"| {split} | {len(mine)} | {right[0]} | {right[1]} |")
    return "\n".join(lines)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", choices=SPLITS)
    given = parser.parse_args()
    torch.set_num_threads(1)
    cells = []
    for split in (given.only,) if given.only else SPLITS:
        for seed in SEEDS:
            cells.append(measure(split, seed))
            last = cells[-1]
            print(split, seed, "sole", last["sole_holders_right"], "flags", last["flags_right"], flush=True)
    print(table(cells))
