"""Compare probes to the pixels and to the outputs of the frozen layers, on the same client models of a small subset.

python results/fedisic/probe_depth.py WEIGHTS FOLDER writes the subset to FOLDER and the comparison to probe_depth.json.
"""

from __future__ import annotations

import json
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch

from celm.data.files.locate import data_root
from celm.engines.in_process import InProcessEngine
from celm.experiment.config import Experiment
from celm.federation.build import build_federation, resolve_defaults
from celm.federation.clients import ClientsState, HonestClients
from celm.federation.frozen_stage import probed_part
from celm.federation.round import initial_state
from celm.federation.server import make_messages
from celm.metrics.fidelity import fidelity, fidelity_to_uniform
from celm.rules.celm import Celm
from celm.rules.messages import RoundData
from celm.rules.rule import ProbeSettings

IMAGES_PER_CENTER, TEST_IMAGES = 60, 60
WALK = {"steps": 10, "lr": 0.2}
"""As far as the default of 200 steps of 0.01, at a twentieth of its cost."""
PROBES: dict[str, dict[str, Any]] = {"pixels": WALK, "tokens": {**WALK, "layer": "frozen"}}


def write_subset(folder: Path) -> None:
    """Write some images of each center, drawn with seed 0."""
    folder.mkdir(parents=True, exist_ok=True)
    random = np.random.RandomState(0)
    source = data_root() / "fedisic"
    for part in ("train", "test"):
        table = pq.read_table(next(source.glob(f"{part}*.parquet")), columns=["image", "label", "center"])
        centers = np.array(table["center"])
        if part == "train":
            rows = [
                random.permutation(np.flatnonzero(centers == center))[:IMAGES_PER_CENTER]
                for center in range(6)
            ]
        else:
            rows = [random.permutation(len(centers))[:TEST_IMAGES]]
        chosen = table.take(pa.array(np.sort(np.concatenate(rows))))
        names = pa.array([f"center-{center}" for center in chosen["center"].to_pylist()])
        pq.write_table(chosen.append_column("client", names), folder / f"{part}.parquet")


def main(weights: str, folder: Path) -> None:
    """Train one round on the subset, probe the models in each way and write the comparison."""
    torch.set_num_threads(1)
    write_subset(folder)
    tables: dict[str, Any] = {
        "dataset": {"name": "folder", "path": str(folder)},
        "split": {"name": "natural"},
        "model": {"name": "vit", "weights": weights, "trainable": "last:2"},
        "rule": {"name": "celm"},
        "train": {"lr": 0.01, "batch": 16, "epochs": 2},
        "run": {"rounds": 1, "workers": 0},
    }
    federation = build_federation(resolve_defaults(Experiment.parse(tables)))
    state = initial_state(federation)
    messages = make_messages(federation.server, state.server, federation.context.clients)
    clients = HonestClients(InProcessEngine(federation.trainer))
    start = time.process_time()
    updates, _ = clients.train(ClientsState(), messages, state.model, 1, 0.01)
    uniform = fidelity_to_uniform(federation.counts)
    results: dict[str, Any] = {
        "training_seconds": round(time.process_time() - start, 1),
        "counts": federation.counts,
        "uniform_jsd": uniform.jensen_shannon if uniform else None,
        "probes": {},
    }
    round_data = RoundData(1, state.model, messages, updates)
    rule = Celm()
    for name, settings in PROBES.items():
        experiment = Experiment.parse({**tables, "probe": settings})
        module, shape = probed_part(
            experiment, federation.context.module, tuple(federation.model_spec.input_shape)
        )
        probe = ProbeSettings(**experiment.probe.model_dump(exclude={"layer"}))
        context = replace(federation.context, module=module, input_shape=shape, probe=probe)
        start = time.process_time()
        result = rule.compute_weights(rule.init(context), context, round_data)
        seconds = time.process_time() - start
        evidence = dict(result.evidence or {})
        distances = fidelity(federation.counts, evidence)
        results["probes"][name] = {
            "processor_seconds": round(seconds, 1),
            "jsd": None if distances is None else distances.jensen_shannon,
            "scores": dict(result.scores or {}),
            "evidence": evidence,
        }
        print(name, round(seconds, 1), results["probes"][name]["jsd"], results["probes"][name]["scores"])
    path = Path(__file__).with_name("probe_depth.json")
    path.write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
