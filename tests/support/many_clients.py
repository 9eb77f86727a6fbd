"""Federations, runs and audits with many clients, written by hand: the data, and so the right page, is known."""

from __future__ import annotations

import argparse
import json
import shutil
import time
from pathlib import Path
from typing import Any

import numpy as np

from celm.base.files import dump_json
from celm.experiment.config import Experiment
from celm.records.hash_chain import GENESIS, json_digest
from celm.runs.run_folder import RunFolder

NUM_CLASSES, NUM_PROBED = 10, 5


def client_names(num_clients: int) -> list[str]:
    return [f"site-{i:04d}" for i in range(num_clients)]


def idle_clients(num_clients: int) -> list[str]:
    """Return the clients that are flagged as idle: every fortieth, at least one."""
    return client_names(num_clients)[3::40]


def write_large_federation(path: Path, num_clients: int, rounds: int = 20) -> Path:
    """Write a federation in which each client holds two classes. Some are idle, absent in round 2 or excluded in 3.

    Five rounds are probed; then weights are frozen. Client 7 (and every fiftieth after it) was never connected.
    """
    names = client_names(num_clients)
    idle, never = set(idle_clients(num_clients)), set(names[7::50])
    generator = np.random.default_rng(0)
    held = np.zeros((num_clients, NUM_CLASSES))
    for i in range(num_clients):
        held[i, [i % NUM_CLASSES, (3 * i + 1) % NUM_CLASSES]] = 1.0
    size = generator.lognormal(0.0, 0.8, num_clients)
    settings: dict[str, Any] = {
        "schema_version": 1,
        "rule": {"name": "celm", "warmup": NUM_PROBED, "evidence": "calibrated"},
        "probe": {"steps": 200},
        "rounds": rounds,
        "seed": 42,
        "classes": NUM_CLASSES,
        "model": {"0.weight": [64, 64]},
    }
    path.mkdir(parents=True)
    previous, weights, lines = GENESIS, np.full(num_clients, 1 / num_clients), []
    for number in range(1, rounds + 1):
        absent = {*never, *(names[5::50] if number == 2 else ())}
        late = {name for name in names[9::50] if number == 3}
        asked = [name for name in names if name not in absent]
        present = [name for name in asked if name not in late]
        probed = number <= NUM_PROBED
        evidence = held * size[:, None] * generator.uniform(0.8, 1.2, held.shape)
        evidence[[name in idle for name in names]] = 0.0
        evidence[[name not in present for name in names]] = 0.0
        if probed:
            scores = (evidence / np.maximum(evidence.sum(axis=0), 1e-9)).mean(axis=1)
            weights = 0.5 * weights + 0.5 * scores
        rows = dict(zip(names, evidence.round(4).tolist(), strict=True))
        shown_weights = dict(zip(names, weights.tolist(), strict=True))
        record = {
            "schema_version": 1,
            "round": number,
            "time": f"2026-05-{number:02d}T10:00:00+00:00",
            "asked": asked,
            "absent": sorted(absent),
            "received": {name: {"sha256": "f" * 64, "samples": 100} for name in present},
            "excluded": dict.fromkeys(sorted(late), "no reply in time"),
            "unexpected": [],
            "weights": {name: shown_weights[name] for name in present},
            "client_weights": shown_weights,
            "earned": shown_weights,
            "flags": {name: {"idle": "its update shows no training"} for name in sorted(idle)},
            "scores": {name: float(scores[i]) for i, name in enumerate(names) if name in present}
            if probed
            else None,
            "evidence": {name: rows[name] for name in present} if probed else None,
            "diagnostics": {},
            "metrics": None,
            "start": "0" * 64,
            "model": "e" * 64,
            "versions": {"celm": "0.1.0", "flwr": "1.42.0"},
            "settings": json_digest(settings),
            "previous": previous,
        }
        lines.append(dump_json(record))
        previous = json_digest(record)
    (path / "rounds.jsonl").write_text("".join(line + "\n" for line in lines))
    (path / "settings.json").write_text(dump_json(settings, indent=2))
    return path


def write_large_run(path: Path, num_clients: int, rounds: int = 20) -> Path:
    """Write a finished run with the rounds of `write_large_federation`."""
    write_large_federation(path / "state", num_clients, rounds)
    lines = [json.loads(line) for line in (path / "state" / "rounds.jsonl").read_text().splitlines()]
    shutil.rmtree(path / "state")
    experiment = Experiment.parse(
        {"split": {"name": "pls", "clients": num_clients}, "run": {"rounds": rounds}}
    )
    folder = RunFolder.create(path / "run", experiment)
    shared = ("round", "excluded", "weights", "client_weights", "scores", "evidence", "earned", "flags")
    for line in lines:
        record = {key: line[key] for key in shared}
        record |= {"lr": 0.1, "clients": line["asked"], "diagnostics": {}, "accuracy": 0.04 * line["round"]}
        record |= {"balanced_accuracy": 0.03 * line["round"], "rare_class_accuracy": None}
        folder.append_round(record, {"total": 1.0})
    weights, last = lines[-1]["client_weights"], lines[NUM_PROBED - 1]["evidence"]
    zeros = [0.0] * NUM_CLASSES
    result = {
        "schema_version": 1,
        "dataset": "digits",
        "split": "pls",
        "model": "mlp",
        "rule": "celm",
        "objective": "plain",
        "seed": 42,
        "rounds": rounds,
        "accuracy": 0.8,
        "balanced_accuracy": 0.6,
        "rare_class_accuracy": None,
        "per_class": [0.05 * k + 0.3 for k in range(NUM_CLASSES)],
        "weights": weights,
        "evidence": last,
        "classes": [str(k) for k in range(NUM_CLASSES)],
        "counts": {name: [round(100 * value) for value in last.get(name, zeros)] for name in weights},
        "free_riders": idle_clients(num_clients),
        "seconds": 75.0,
    }
    folder.write_json("environment.json", {"schema_version": 1, "starts": []})
    folder.write_json("result.json", result)
    return path / "run"


def large_audit(num_clients: int) -> dict[str, Any]:
    """Return the document of an audit in which each client holds one class; idle clients are flagged."""
    names, idle = client_names(num_clients), idle_clients(num_clients)
    evidence = {
        name: [(1.0 + i % 7) * (k == i % NUM_CLASSES and name not in idle) for k in range(NUM_CLASSES)]
        for i, name in enumerate(names)
    }
    totals = [sum(row[k] for row in evidence.values()) or 1.0 for k in range(NUM_CLASSES)]
    shares = {name: [v / t for v, t in zip(row, totals, strict=True)] for name, row in evidence.items()}
    scores = {name: sum(row) / NUM_CLASSES for name, row in shares.items()}
    return {
        "classes": [str(k) for k in range(NUM_CLASSES)],
        "settings": {"confidence": 0.95, "num_starts": 5, "evidence": "calibrated", "movement": True},
        "scores": scores,
        "probe_standard_errors": {name: 0.1 * score for name, score in scores.items()},
        "weights": scores,
        "z_scores": dict.fromkeys(names, 0.0),
        "evidence": evidence,
        "shares": shares,
        "distribution": {name: [v / sum(totals) for v in row] for name, row in evidence.items()},
        "holds": {name: [str(k) for k, v in enumerate(row) if v] for name, row in evidence.items()},
        "possibly_holds": {name: [] for name in names},
        "sole_holders": {
            str(k): names[k]
            for k in range(NUM_CLASSES)
            if num_clients == NUM_CLASSES and names[k] not in idle
        },
        "flags": dict.fromkeys(idle, "returned the model it was given, unchanged"),
        "excluded": {},
        "notes": {},
        "ignored": [],
        "rounds": [{"round": 1, "name": "uploads", "scores": scores, "excluded": {}, "flags": {}}],
    }


def _build(kind: str, out: Path, num_clients: int) -> str:
    from celm.report.audit_page import audit_page
    from celm.report.build import build_report

    if kind == "audit":
        return audit_page(large_audit(num_clients))
    folder = out / f"{kind}-{num_clients}"
    if not folder.exists():
        (write_large_run if kind == "run" else write_large_federation)(folder, num_clients)
    return build_report(folder / "run" if kind == "run" else folder)


def _measure() -> None:
    """Print size and processor time of pages: `python tests/support/many_clients.py --out DIR 10 200 1000`."""
    parser = argparse.ArgumentParser()
    parser.add_argument("clients", type=int, nargs="+")
    parser.add_argument("--out", type=Path, required=True)
    arguments = parser.parse_args()
    for kind in ("federation", "run", "audit"):
        for num_clients in arguments.clients:
            _build(kind, arguments.out, num_clients)  # folders, imports and fonts
            started = time.process_time()
            page = _build(kind, arguments.out, num_clients)
            seconds = time.process_time() - started
            (arguments.out / f"{kind}-{num_clients}.html").write_text(page)
            print(
                f"{kind:10} {num_clients:5d} clients: {len(page.encode()) / 1e6:6.2f} MB, {seconds:6.1f} s of one core"
            )


if __name__ == "__main__":
    _measure()
