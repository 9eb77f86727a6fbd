"""Measure the matrix attack x estimator: CELM_DATA=... python results/trust/attacks.py [--only FILTER] [--smoke]

Protocol, fixed before the first measurement:

- FashionMNIST, MLP, 5 clients, 30 rounds, warm-up of 5 rounds for CELM; splits pls (the attacker is client-0, which
  holds 2 of 10 classes) and maverick (the attacker is client-1, an ordinary client; the Maverick is client-0); seeds
  44, 45, 46 (42 and 43 were used to choose constants). All else is the default, cgsv as plain weights
  (`aggregation_only`), cffl as in the paper's comparison (`sharpen = "share"`).
- ATTACKS below, one attacker at a time. It attacks in all rounds or, if the label says so, only in the first 5, while
  CELM probes. A client that scales every upload also scales the global model that it receives again, and so ruins that
  model. `idle_after_warmup` is honest for the same 5 rounds. `scale_norm` is excluded: the MLP has no normalisation.
  `fabricate_class` with random, global and own rows was added after a review showed that these three pay, before they
  were measured here.
- METHODS below: every method with every attack, and without an attack. The method that also clips updates to the median
  norm was added after all others had been run at seed 44 on pls. Scores that cannot be manipulated do not protect the
  model from an attacker that does not want weight.
- Weight gained: the attacker's final weight minus its weight in the honest run of the same method, split and seed, in
  points. The weight of Sybils is the sum over all identities. Damage: accuracy (for maverick also rare-class accuracy)
  of the honest run minus that of the attacked one, in points. Means over the seeds.
- A run in which an upload was excluded as not finite is marked. The global model is evaluated without correction.

Every cell is one run and is not repeated: attacks/runs.json collects the results. The tables are in attacks/table.md;
attacks/gained.svg shows the weights gained. `--smoke` runs digits with 3 rounds and one seed, under runs/, as a test.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from statistics import mean
from typing import Any

from panels import Table, draw_panels, save_figure

import celm
from celm.base.errors import CelmError
from celm.base.files import write_text
from celm.experiment.overrides import apply_override

HERE = Path(__file__).parent
RUNS = Path("runs") / "attacks"
SEEDS = (44, 45, 46)
SPLITS = {"pls": "client-0", "maverick": "client-1"}
"""Split to attacker."""

METHODS: dict[str, list[str]] = {
    "celm": ["rule.name=celm", "rule.warmup=5"],
    "celm calibrated": ["rule.name=celm", "rule.warmup=5", "rule.evidence=calibrated"],
    "celm calibrated, looking again": [
        "rule.name=celm",
        "rule.warmup=5",
        "rule.evidence=calibrated",
        "rule.idle_check=on-drift",
    ],
    "celm calibrated, looking again, clipped": [
        "rule.name=celm",
        "rule.warmup=5",
        "rule.evidence=calibrated",
        "rule.idle_check=on-drift",
        "filter.name=clip_norm",
    ],
    "shapfed": ["rule.name=shapfed"],
    "cgsv": ["rule.name=cgsv", "rule.protocol=aggregation_only"],
    "cffl": ["rule.name=cffl", "rule.sharpen=share"],
    "rffl": ["rule.name=rffl"],
    "fedce": ["rule.name=fedce"],
    "gtg_shapley": ["rule.name=gtg_shapley"],
    "data_size": ["rule.name=fedavg", "rule.by_size=true"],
}
"""Label to settings. To measure another method, add it here and run the script again."""

ATTACKS: dict[str, list[str]] = {
    "honest": [],
    "scale_head x2": ["attack.name=scale_head", "attack.strength=2.0"],
    "scale_head x10": ["attack.name=scale_head", "attack.strength=10.0"],
    "scale_head x100": ["attack.name=scale_head", "attack.strength=100.0"],
    "scale_head x10, 5 rounds": ["attack.name=scale_head", "attack.strength=10.0", "attack.last_round=5"],
    "scale_head x100, 5 rounds": ["attack.name=scale_head", "attack.strength=100.0", "attack.last_round=5"],
    "scale_layer x10": ["attack.name=scale_layer", "attack.strength=10.0"],
    "shift_bias +10": ["attack.name=shift_bias", "attack.strength=10.0"],
    "shift_bias +10, 5 rounds": ["attack.name=shift_bias", "attack.strength=10.0", "attack.last_round=5"],
    "shift_bias fc2 +10": ["attack.name=shift_bias", "attack.layer=fc2", "attack.strength=10.0"],
    "random_weights": ["attack.name=random_weights"],
    "fabricate_class": ["attack.name=fabricate_class"],
    "fabricate_class, random x2": [
        "attack.name=fabricate_class",
        "attack.rows=random",
        "attack.strength=2.0",
    ],
    "fabricate_class, global x2": [
        "attack.name=fabricate_class",
        "attack.rows=global",
        "attack.strength=2.0",
    ],
    "fabricate_class, own x3": ["attack.name=fabricate_class", "attack.rows=own", "attack.strength=3.0"],
    "invent_data": ["attack.name=invent_data"],
    "copy_global": ["attack.name=copy_global"],
    "copy_global, noise": ["attack.name=copy_global", "attack.strength=1.0"],
    "copy_global, noise x3, head x10": ["attack.name=copy_global", "attack.strength=3.0", "attack.head=10.0"],
    "copy_global, all x1.3": ["attack.name=copy_global", "attack.scale=1.3"],
    "replay_delta": ["attack.name=replay_delta"],
    "replay_delta x3": ["attack.name=replay_delta", "attack.strength=3.0"],
    "idle_after_warmup": ["attack.name=idle_after_warmup", "attack.honest=5"],
    "sybil": ["attack.name=sybil"],
    "flip_labels": ["attack.name=flip_labels"],
    "overconfident": ["attack.name=overconfident"],
    "label_smoothed": ["attack.name=label_smoothed"],
    "temperature": ["attack.name=temperature"],
}


@dataclass(frozen=True)
class AttackRun:
    split: str
    method: str
    attack: str
    seed: int

    @property
    def name(self) -> str:
        return "-".join([self.split, self.method, *self.attack.replace(",", "").split(), str(self.seed)])


@dataclass(frozen=True)
class MatrixScale:
    """The folders, settings and seeds of a matrix."""

    results: Path
    runs: Path
    settings: tuple[str, ...]
    seeds: tuple[int, ...]

    def result_path(self, cell: AttackRun) -> Path:
        return self.runs / "cells" / f"{cell.name}.json"

    def cells(self) -> Iterator[AttackRun]:
        for seed in self.seeds:
            for split in SPLITS:
                for method in METHODS:
                    for attack in ATTACKS:
                        yield AttackRun(split, method, attack, seed)


FULL = MatrixScale(HERE / "attacks", RUNS, ("dataset.name=fashion_mnist", "run.rounds=30"), SEEDS)
SMOKE = MatrixScale(
    RUNS / "smoke",
    RUNS / "smoke",
    ("dataset.name=digits", "run.rounds=3", "probe.steps=5", "train.batch=32"),
    (42,),
)


def measure(scale: MatrixScale, cell: AttackRun) -> str | None:
    """Finish the run of a cell. Return one line about its outcome; None if it was done before."""
    if load_result(scale, cell) is not None:
        return None
    settings = [*scale.settings, f"split.name={cell.split}", f"run.seed={cell.seed}", "run.workers=0"]
    settings += [*METHODS[cell.method], *ATTACKS[cell.attack]]
    if cell.attack != "honest":
        settings.append(f"attack.client={SPLITS[cell.split]}")
    tables: dict[str, Any] = {}
    for setting in settings:
        apply_override(tables, setting)
    folder = scale.runs / cell.name
    try:
        started = (folder / "settings.toml").exists()
        run = celm.resume(folder) if started else celm.run(celm.Experiment.parse(tables), out=folder)
    except CelmError as error:
        return f"{cell.name}: {error}"
    recorded_keys = ("accuracy", "balanced_accuracy", "rare_class_accuracy", "weights", "excluded", "seconds")
    record = {name: run.metrics[name] for name in recorded_keys}
    target = scale.result_path(cell)
    target.parent.mkdir(parents=True, exist_ok=True)
    write_text(target, json.dumps(record, indent=1) + "\n")
    return f"{cell.name}: {100 * run.accuracy:.2f} % in {run.metrics['seconds']:.0f} s"


def load_result(scale: MatrixScale, cell: AttackRun) -> dict[str, Any] | None:
    path = scale.result_path(cell)
    return load_collected(scale).get(cell.name) or (json.loads(path.read_text()) if path.exists() else None)


@cache
def load_collected(scale: MatrixScale) -> dict[str, Any]:
    """Return the name of each cell to its result in earlier runs of this script."""
    path = scale.results / "runs.json"
    return dict(json.loads(path.read_text())) if path.exists() else {}


def collect(scale: MatrixScale) -> None:
    rows = {cell.name: result for cell in scale.cells() if (result := load_result(scale, cell)) is not None}
    lines = [f"{json.dumps(name)}: {json.dumps(result)}" for name, result in rows.items()]
    write_text(scale.results / "runs.json", "{\n" + ",\n".join(lines) + "\n}\n")


def attacker_weight(result: dict[str, Any], client: str) -> float:
    """Return the sum of the attacker's weights, under all its names."""
    weights: dict[str, float] = result["weights"]
    return sum(
        weight for name, weight in weights.items() if name == client or name.startswith(f"{client}-sybil-")
    )


def compare_with_honest(scale: MatrixScale, split: str, method: str, attack: str) -> dict[str, float] | None:
    """Return means over seeds, in points: the weight that the attacker gained, and the accuracies lost."""
    gains: dict[str, list[float]] = {}
    for seed in scale.seeds:
        attacked = load_result(scale, AttackRun(split, method, attack, seed))
        honest = load_result(scale, AttackRun(split, method, "honest", seed))
        if attacked is None or honest is None:
            continue
        client = SPLITS[split]
        gains.setdefault("weight", []).append(
            100 * (attacker_weight(attacked, client) - attacker_weight(honest, client))
        )
        for name in ("accuracy", "rare_class_accuracy"):
            if honest[name] is not None:
                gains.setdefault(name, []).append(100 * (honest[name] - attacked[name]))
        gains.setdefault("excluded", []).append(float(bool(attacked["excluded"])))
    return {name: mean(values) for name, values in gains.items()} or None


def format_tables(scale: MatrixScale) -> str:
    """Return tables of weight gained and accuracy lost, for each split."""
    titles = {"weight": "weight gained by the attacker", "accuracy": "accuracy lost"}
    titles["rare_class_accuracy"] = "rare-class accuracy lost"
    lines: list[str] = []
    for split in SPLITS:
        for measure_name, title in titles.items():
            rows = []
            for attack in list(ATTACKS)[1:]:
                comparisons = [compare_with_honest(scale, split, method, attack) for method in METHODS]
                if any(comparison is not None and measure_name in comparison for comparison in comparisons):
                    rows.append(
                        f"| {attack} | "
                        + " | ".join(format_gain(comparison, measure_name) for comparison in comparisons)
                        + " |"
                    )
            if rows:
                lines += [f"**{split}: {title}, in points**", "", "| | " + " | ".join(METHODS) + " |"]
                lines += ["|---" * (len(METHODS) + 1) + "|", *rows, ""]
    lines.append("`!`: an upload was left out as not finite in at least one run.")
    return "\n".join(lines) + "\n"


def weight_gains(scale: MatrixScale, split: str) -> Table:
    """Return attack to method to points of weight gained."""
    table = {}
    for attack in list(ATTACKS)[1:]:
        comparisons = {method: compare_with_honest(scale, split, method, attack) for method in METHODS}
        table[attack] = {
            method: comparison["weight"]
            for method, comparison in comparisons.items()
            if comparison is not None
        }
    return {attack: cells for attack, cells in table.items() if cells}


def format_gain(gains: dict[str, float] | None, name: str) -> str:
    if gains is None or name not in gains:
        return "–"
    return f"{gains[name]:+z.1f}" + ("!" if gains["excluded"] else "")


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--only", default="", help="a part of the cells' names, as in pls-celm-")
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--smoke", action="store_true")
    options = parser.parse_args()
    scale = SMOKE if options.smoke else FULL
    selected = [cell for cell in scale.cells() if options.only in cell.name]
    with ProcessPoolExecutor(options.processes, multiprocessing.get_context("spawn")) as pool:
        for line in pool.map(measure, [scale] * len(selected), selected):
            if line:
                print(line, flush=True)
    scale.results.mkdir(parents=True, exist_ok=True)
    collect(scale)
    write_text(scale.results / "table.md", format_tables(scale))
    pictures = {
        f"{split}: the attacker is {client}": table
        for split, client in SPLITS.items()
        if (table := weight_gains(scale, split))
    }
    label = "points of weight gained over honest behaviour"
    figure = draw_panels(
        pictures, list(METHODS), label=label, limit=50, format_value="{:+z.1f}".format, colours="RdBu_r"
    )
    save_figure(figure, scale.results / "gained.svg")
