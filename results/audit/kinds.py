"""Other kinds of free-riders than the one measured: CELM_DATA=... python results/audit/kinds.py; no target, a look at
limits.

Protocol, written before the first measurement: the split free_rider with each of its other kinds, seeds 42, 43, 44, and
otherwise as in measure.py. Written down is who is flagged, and the classes that the free-rider seems to hold.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import torch
from measure import CHECKPOINTS, HERE, ROUNDS, audit

from celm.base.files import write_tensors, write_text
from celm.engines.in_process import InProcess
from celm.federation.assembly import assemble, resolve
from celm.federation.experiment import Experiment
from celm.federation.rounds import begin, play
from celm.rules.celm import Celm
from celm.rules.exchange import Round

KINDS = ("copy_global", "noise", "replay_delta", "repeated_samples", "random_labels")


@dataclass(frozen=True)
class Keeping(Celm):
    """CELM, which keeps the last round: what clients really sent, whatever they did instead of training."""

    last: ClassVar[dict[str, Round]] = {}

    def weigh(self, state: Any, federation: Any, round: Round) -> Any:
        self.last["round"] = round
        return super().weigh(state, federation, round)


def measure(kind: str, seed: int) -> dict[str, Any]:
    run = {"rounds": 100, "seed": seed, "workers": 0, "evaluate_every": 100}
    split = {"name": "free_rider", "kind": kind}
    tables = {"dataset": "fashion_mnist", "split": split, "rule": "celm", "run": run}
    federation = replace(assemble(resolve(Experiment.parse(tables))), rule=Keeping())
    state = begin(federation)
    for _ in range(ROUNDS):
        state = play(federation, state, InProcess(federation.workbench)).state
    place = CHECKPOINTS / f"{kind}-{seed}"
    place.mkdir(parents=True, exist_ok=True)
    write_tensors(place / "global.safetensors", Keeping.last["round"].start, {})
    for client, update in Keeping.last["round"].updates.items():
        write_tensors(place / f"{client}.safetensors", update.model, {})
    found = audit(place, "10")
    rider = federation.dealing.free_riders[0]
    return {
        "kind": kind,
        "seed": seed,
        "free_rider": rider,
        "flags": found["flags"],
        "holds": len(found["holds"][rider]),
        "score": found["scores"][rider],
    }


if __name__ == "__main__":
    torch.set_num_threads(1)
    cells = []
    for kind in KINDS:
        for seed in (42, 43, 44):
            cells.append(measure(kind, seed))
            print({**cells[-1], "flags": list(cells[-1]["flags"])}, flush=True)
    write_text(HERE / "kinds.json", json.dumps(cells, indent=1) + "\n")
