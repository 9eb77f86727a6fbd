"""Measure the audit on checkpoints of FashionMNIST: CELM_DATA=... python results/audit/measure.py; resumable.

Protocol, written before the first measurement. For each of the splits maverick, free_rider and frm (the library's
defaults: five clients) and each seed from 42 to 51:

1. Train five rounds with the rule celm at the paper's settings for 100 rounds, whose warm-up these five are: clients
   keep their own heads. Save the uploads of round 5 and the global model they started from as safetensors.
2. Run `celm audit --global ... --clients ... --model mlp --input-shape 1,28,28 --classes 10 --preset none` on them,
   with default settings (5 starts, confidence 0.95) and one thread. The audit reads these six files and nothing else.
3. Count sole holders as right if the audit names exactly the rare classes, each with its only holder (none for
   free_rider). Count flags as right if it flags exactly the split's free-riders (none for maverick).

The definitions of a holding and of a free-rider (celm/auditing/analysis.py) were fixed on seeds 1 to 6 of the same
splits. These seeds are not measured here.
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
from celm.engines.in_process import InProcessEngine
from celm.experiment.config import Experiment
from celm.federation.build import build_federation, resolve_defaults
from celm.federation.client_trainer import ClientResult, ClientTask
from celm.federation.round import initial_state, run_round

HERE = Path(__file__).parent
CHECKPOINTS = Path("runs") / "audit"
SPLITS = ("maverick", "free_rider", "frm")
SEEDS = range(42, 52)
ROUNDS = 5
RECORDED_KEYS = ("sole_holders", "flags", "scores", "probe_standard_errors", "z_scores", "holds")


class RecordingEngine(InProcessEngine):
    """In-process engine that records the last results of the clients."""

    sent: dict[str, ClientResult]

    def train(self, tasks: Sequence[ClientTask]) -> list[ClientResult]:
        results = super().train(tasks)
        self.sent = {task.client: result for task, result in zip(tasks, results, strict=True)}
        return results


def train_and_save(split: str, seed: int, folder: Path) -> dict[str, Any]:
    """Train five rounds, save the models of the last one, and return the truth."""
    run = {"rounds": 100, "seed": seed, "workers": 0, "evaluate_every": 100}
    tables = {"dataset": "fashion_mnist", "split": split, "rule": "celm", "run": run}
    federation = build_federation(resolve_defaults(Experiment.parse(tables)))
    engine, state = RecordingEngine(federation.trainer), initial_state(federation)
    for _ in range(ROUNDS):
        global_model = state.model
        state = run_round(federation, state, engine).state
    folder.mkdir(parents=True, exist_ok=True)
    write_tensors(folder / "global.safetensors", global_model, {})
    for client, result in engine.sent.items():
        write_tensors(folder / f"{client}.safetensors", result.update.model, {})
    holders = {
        federation.class_names[k]: [c for c, row in federation.counts.items() if row[k]]
        for k in federation.partition.rare_classes
    }
    return {"sole_holders": holders, "free_riders": list(federation.partition.free_riders)}


def audit_folder(folder: Path, classes: str) -> dict[str, Any]:
    command = [sys.executable, "-m", "celm", "audit", "--global", str(folder / "global.safetensors")]
    command += ["--clients", str(folder), "--model", "mlp", "--input-shape", "1,28,28", "--classes", classes]
    command += ["--preset", "none"]
    completed = subprocess.run([*command, "--format", "json"], capture_output=True, text=True, check=True)
    document: dict[str, Any] = json.loads(completed.stdout)
    return document


def measure(split: str, seed: int) -> dict[str, Any]:
    target = HERE / "cells" / f"{split}-{seed}.json"
    if target.exists():
        cell: dict[str, Any] = json.loads(target.read_text())
        return cell
    folder = CHECKPOINTS / f"{split}-{seed}"
    truth = train_and_save(split, seed, folder)
    document = audit_folder(
        folder, "T-shirt/top,Trouser,Pullover,Dress,Coat,Sandal,Shirt,Sneaker,Bag,Ankle boot"
    )
    expected = {name: clients[0] for name, clients in truth["sole_holders"].items()}
    cell = {
        "split": split,
        "seed": seed,
        "sole_holders_right": document["sole_holders"] == expected,
        "flags_right": sorted(document["flags"]) == sorted(truth["free_riders"]),
        "truth": {"sole_holders": expected, "free_riders": truth["free_riders"]},
        **{key: document[key] for key in RECORDED_KEYS},
    }
    target.parent.mkdir(exist_ok=True)
    write_text(target, json.dumps(cell, indent=1) + "\n")
    return cell


def table(cells: Sequence[dict[str, Any]]) -> str:
    lines = ["| split | seeds | sole holders right | flags right |", "|---|---|---|---|"]
    for split in SPLITS:
        split_cells = [cell for cell in cells if cell["split"] == split]
        right = [sum(cell[key] for cell in split_cells) for key in ("sole_holders_right", "flags_right")]
        lines.append(f"| {split} | {len(split_cells)} | {right[0]} | {right[1]} |")
    return "\n".join(lines)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", choices=SPLITS)
    options = parser.parse_args()
    torch.set_num_threads(1)
    cells = []
    for split in (options.only,) if options.only else SPLITS:
        for seed in SEEDS:
            cells.append(measure(split, seed))
            last = cells[-1]
            print(split, seed, "sole", last["sole_holders_right"], "flags", last["flags_right"], flush=True)
    print(table(cells))
