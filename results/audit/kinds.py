"""Audit other kinds of free-riders than measure.py does: CELM_DATA=... python results/audit/kinds.py

There is no target: the script explores limits. Protocol, written before the first measurement: the split free_rider
with each of its other kinds, seeds 42, 43, 44, and otherwise as in measure.py. It records which clients are flagged,
and the number of classes that the free-rider certainly holds by the audit.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import torch
from measure import CHECKPOINTS, HERE, ROUNDS, audit_folder

from celm.base.files import write_tensors, write_text
from celm.engines.in_process import InProcessEngine
from celm.experiment.config import Experiment
from celm.federation.build import build_federation, resolve_defaults
from celm.federation.round import initial_state, run_round
from celm.rules.celm import Celm
from celm.rules.messages import RoundData

KINDS = ("copy_global", "noise", "replay_delta", "repeated_samples", "random_labels")


@dataclass(frozen=True)
class RecordingCelm(Celm):
    """CELM that records its last round: the models that clients really sent, also if they did not train."""

    recorded: ClassVar[dict[str, RoundData]] = {}

    def compute_weights(self, state: Any, context: Any, round: RoundData) -> Any:
        self.recorded["round"] = round
        return super().compute_weights(state, context, round)


def measure(kind: str, seed: int) -> dict[str, Any]:
    run = {"rounds": 100, "seed": seed, "workers": 0, "evaluate_every": 100}
    split = {"name": "free_rider", "kind": kind}
    tables = {"dataset": "fashion_mnist", "split": split, "rule": "celm", "run": run}
    federation = build_federation(resolve_defaults(Experiment.parse(tables)))
    federation = replace(federation, server=replace(federation.server, rule=RecordingCelm()))
    state = initial_state(federation)
    for _ in range(ROUNDS):
        state = run_round(federation, state, InProcessEngine(federation.trainer)).state
    folder = CHECKPOINTS / f"{kind}-{seed}"
    folder.mkdir(parents=True, exist_ok=True)
    write_tensors(folder / "global.safetensors", RecordingCelm.recorded["round"].global_model, {})
    for client, update in RecordingCelm.recorded["round"].updates.items():
        write_tensors(folder / f"{client}.safetensors", update.model, {})
    document = audit_folder(folder, "10")
    rider = federation.partition.free_riders[0]
    return {
        "kind": kind,
        "seed": seed,
        "free_rider": rider,
        "flags": document["flags"],
        "holds": len(document["holds"][rider]),
        "score": document["scores"][rider],
    }


if __name__ == "__main__":
    torch.set_num_threads(1)
    cells = []
    for kind in KINDS:
        for seed in (42, 43, 44):
            cells.append(measure(kind, seed))
            print({**cells[-1], "flags": list(cells[-1]["flags"])}, flush=True)
    write_text(HERE / "kinds.json", json.dumps(cells, indent=1) + "\n")
