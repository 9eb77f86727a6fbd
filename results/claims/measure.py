"""Measure how often reports of runs name the wrong holders of a class; the protocol is in README.md.

CELM_DATA=... python results/claims/measure.py digits            # writes digits.json, resumable
CELM_DATA=... python results/claims/measure.py fashion_mnist
python results/claims/measure.py                                 # prints the table of both
"""

from __future__ import annotations

import argparse
import json
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from celm.base.files import write_text
from celm.core.class_holders import UNTRAINED_FLAGS, ClassClaims, RoundEvidence, class_claims
from celm.engines.in_process import InProcessEngine
from celm.experiment.config import Experiment
from celm.federation.build import build_federation, resolve_defaults
from celm.federation.round import initial_state, run_round

HERE = Path(__file__).parent
DATASETS: dict[str, tuple[dict[str, Any], range]] = {
    "digits": ({"name": "digits"}, range(42, 50)),
    "fashion_mnist": ({"name": "fashion_mnist", "limit": 600}, range(42, 46)),
}
"""Dataset to its settings and seeds."""
SPLITS: dict[str, Any] = {
    **{name: name for name in ("pls", "dirichlet", "maverick", "sls", "free_rider", "frm")},
    "noise": {"name": "free_rider", "kind": "noise"},
}
EVIDENCE = ("paper", "calibrated")
WARMUPS = (1, 3, 5, 10)
SMALL_PART = 0.05
"""Another holder with less than this part of a class's samples is a small one."""


def run_cell(dataset: str, split: str, evidence: str, seed: int) -> dict[str, Any]:
    """Train ten warm-up rounds; return the truth and the evidence of each round."""
    tables = {
        "dataset": DATASETS[dataset][0],
        "split": SPLITS[split],
        "rule": {"name": "celm", "evidence": evidence, "warmup": max(WARMUPS)},
        "run": {"rounds": 100, "seed": seed, "workers": 0, "evaluate_every": 100},
    }
    federation = build_federation(resolve_defaults(Experiment.parse(tables)))
    engine, state = InProcessEngine(federation.trainer), initial_state(federation)
    rounds = []
    for _ in range(max(WARMUPS)):
        result = run_round(federation, state, engine)
        state, record = result.state, result.record
        rows = {client: [round(q, 4) for q in row] for client, row in record["evidence"].items()}
        untrained = [client for client, kinds in record["flags"].items() if UNTRAINED_FLAGS & set(kinds)]
        rounds.append({"evidence": rows, "untrained": untrained})
    counts = {client: list(map(int, row)) for client, row in federation.counts.items()}
    if split == "noise":  # its first client has data, but does not train on them
        counts[next(iter(counts))] = [0] * len(federation.class_names)
    return {"split": split, "evidence": evidence, "seed": seed, "counts": counts, "rounds": rounds}


def last_round_claims(rounds: Sequence[RoundEvidence]) -> ClassClaims:
    """Claims without a test: evidence above zero in the last probed round."""
    rows = rounds[-1].by_client
    held = {client: tuple(k for k, q in enumerate(row) if q > 0) for client, row in rows.items()}
    holders = {k: [c for c in held if k in held[c]] for k in range(len(next(iter(rows.values()))))}
    return ClassClaims(
        len(holders), held, {}, {k: names[0] for k, names in holders.items() if len(names) == 1}
    )


def count_claims(claims: ClassClaims | None, counts: Mapping[str, Sequence[int]]) -> Counter[str]:
    """Count claims, false claims and what there was to find."""
    holds = {(c, k): n for c, row in counts.items() for k, n in enumerate(row) if n}
    holders = {k: [c for c, j in holds if j == k] for k in {k for _, k in holds}}
    found = Counter(held=len(holds), alone=sum(len(names) == 1 for names in holders.values()))
    if claims is None:
        return found
    surely = {(client, k) for client, classes in claims.surely.items() for k in classes}
    found.update(surely=len(surely), false=len(surely - set(holds)), right=len(surely & set(holds)))
    for k, client in claims.sole_evidence.items():
        total = sum(row[k] for row in counts.values())
        others = 1.0 if (client, k) not in holds else 1 - holds[client, k] / total
        found.update(
            sole=1,
            sole_right=others == 0,
            sole_small=0 < others <= SMALL_PART,
            sole_false=others > SMALL_PART,
        )
    return found


def table(cells: Sequence[Mapping[str, Any]], dataset: str) -> list[str]:
    """Return the rows of a dataset: evidence x warm-up x rule."""
    lines = []
    for evidence in EVIDENCE:
        for warmup in WARMUPS:
            for label, claim in (("last round", last_round_claims), ("test", class_claims)):
                total: Counter[str] = Counter()
                for cell in cells:
                    if cell["evidence"] == evidence:
                        rounds = [RoundEvidence(r["evidence"], None, r["untrained"]) for r in cell["rounds"]]
                        total += count_claims(claim(rounds[:warmup]), cell["counts"])
                lines.append(
                    f"| {dataset} | {evidence} | {warmup} | {label} | {total['surely']} | {total['false']}"
                    f" ({100 * total['false'] / max(1, total['surely']):.1f} %)"
                    f" | {100 * total['right'] / total['held']:.0f} % | {total['sole']} | {total['sole_false']}"
                    f" | {total['sole_small']} | {total['sole_right']} of {total['alone']} |"
                )
    return lines


def measure(dataset: str) -> None:
    """Run the cells of a dataset that its file does not have yet."""
    path = HERE / f"{dataset}.json"
    cells = json.loads(path.read_text()) if path.exists() else []
    done = {(cell["split"], cell["evidence"], cell["seed"]) for cell in cells}
    for seed in DATASETS[dataset][1]:
        for split in SPLITS:
            for evidence in EVIDENCE:
                if (split, evidence, seed) not in done:
                    cells.append(run_cell(dataset, split, evidence, seed))
                    write_text(path, "[\n" + ",\n".join(map(json.dumps, cells)) + "\n]\n")
                    print(dataset, split, evidence, seed, flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("dataset", nargs="?", choices=DATASETS)
    chosen = parser.parse_args().dataset
    torch.set_num_threads(1)
    if chosen:
        measure(chosen)
    else:
        print(
            "| data | evidence | warm-up | rule | surely | false | of all holdings | sole | false | small | right |"
        )
        print("|---|---|---|---|---|---|---|---|---|---|---|")
        for name in DATASETS:
            if (HERE / f"{name}.json").exists():
                print("\n".join(table(json.loads((HERE / f"{name}.json").read_text()), name)))
