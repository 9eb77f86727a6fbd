"""The matrix attack x estimator: CELM_DATA=... python results/trust/attacks.py [--only FILTER] [--smoke]

Protocol, fixed before the first measurement:

- FashionMNIST, MLP, 5 clients, 30 rounds, warm-up of 5 rounds for CELM; splits pls (the attacker is client-0, which
  holds 2 of 10 classes) and maverick (the attacker is client-1, an ordinary client; the Maverick is client-0); seeds
  44, 45, 46 (42 and 43 were used to choose constants). All else is the default, cgsv as plain weights
  (`aggregation_only`), cffl as in the paper's comparison (`sharpen = "share"`).
- ATTACKS below, one attacker at a time, in all rounds or, where said, only in the first 5, while CELM probes: who
  scales its upload for ever scales what comes back to it in the global model again and again, and ruins that model.
  `idle_after_warmup` is honest for the same 5 rounds.
  `scale_norm` is left out: the MLP has no normalisation. `fabricate_class` with random, global and own rows was added
  after a review found that these three pay, before they were measured here.
- METHODS below: every one with every attack, and without any. The one that also shortens updates to the median length
  was added when all others had been run at seed 44 on pls: scores that cannot be bought do not keep a model from being
  ruined by who does not care for them.
- Weight gained: the attacker's final weight (of all its identities together, for Sybils) minus what it has in the
  honest run of the same method, split and seed, in points. Damage: accuracy (for maverick also rare-class accuracy) of
  the honest run minus that of the attacked one, in points. Means over the seeds.
- A run in which an upload was left out as not finite is marked. A global model is judged as it comes out.

Every cell is one run, and none is run twice: what each found is collected in attacks/runs.json. The tables are
attacks/table.md, the weights gained also attacks/gained.svg as a picture.
`--smoke` is digits, 3 rounds and one seed, under runs/, to see that everything runs.
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

from panels import Table, panels, save

import celm
from celm.base.errors import CelmError
from celm.base.files import write_text
from celm.federation.experiment import assign

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
        "rule.reprobe=on-drift",
    ],
    "celm calibrated, looking again, clipped": [
        "rule.name=celm",
        "rule.warmup=5",
        "rule.evidence=calibrated",
        "rule.reprobe=on-drift",
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
"""Label to settings; add one here and run the script again."""

ATTACKS: dict[str, list[str]] = {
    "honest": [],
    "scale_head x2": ["attack.name=scale_head", "attack.strength=2.0"],
    "scale_head x10": ["attack.name=scale_head", "attack.strength=10.0"],
    "scale_head x100": ["attack.name=scale_head", "attack.strength=100.0"],
    "scale_head x10, 5 rounds": ["attack.name=scale_head", "attack.strength=10.0", "attack.last=5"],
    "scale_head x100, 5 rounds": ["attack.name=scale_head", "attack.strength=100.0", "attack.last=5"],
    "scale_layer x10": ["attack.name=scale_layer", "attack.strength=10.0"],
    "shift_bias +10": ["attack.name=shift_bias", "attack.strength=10.0"],
    "shift_bias +10, 5 rounds": ["attack.name=shift_bias", "attack.strength=10.0", "attack.last=5"],
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
class Cell:
    split: str
    method: str
    attack: str
    seed: int

    @property
    def name(self) -> str:
        return "-".join([self.split, self.method, *self.attack.replace(",", "").split(), str(self.seed)])


@dataclass(frozen=True)
class Scale:
    """Where results are, and what is run."""

    results: Path
    runs: Path
    settings: tuple[str, ...]
    seeds: tuple[int, ...]

    def place(self, cell: Cell) -> Path:
        return self.runs / "cells" / f"{cell.name}.json"

    def cells(self) -> Iterator[Cell]:
        for seed in self.seeds:
            for split in SPLITS:
                for method in METHODS:
                    for attack in ATTACKS:
                        yield Cell(split, method, attack, seed)


FULL = Scale(HERE / "attacks", RUNS, ("dataset.name=fashion_mnist", "run.rounds=30"), SEEDS)
SMOKE = Scale(
    RUNS / "smoke",
    RUNS / "smoke",
    ("dataset.name=digits", "run.rounds=3", "probe.steps=5", "train.batch=32"),
    (42,),
)


def measure(scale: Scale, cell: Cell) -> str | None:
    """Do what is left of a cell; one line on how it went, None where it was done before."""
    if found(scale, cell) is not None:
        return None
    settings = [*scale.settings, f"split.name={cell.split}", f"run.seed={cell.seed}", "run.workers=0"]
    settings += [*METHODS[cell.method], *ATTACKS[cell.attack]]
    if cell.attack != "honest":
        settings.append(f"attack.client={SPLITS[cell.split]}")
    tables: dict[str, Any] = {}
    for setting in settings:
        assign(tables, setting)
    place = scale.runs / cell.name
    try:
        started = (place / "settings.toml").exists()
        run = celm.resume(place) if started else celm.run(celm.Experiment.parse(tables), out=place)
    except CelmError as error:
        return f"{cell.name}: {error}"
    kept = ("accuracy", "balanced_accuracy", "rare_class_accuracy", "weights", "excluded", "seconds")
    record = {name: run.metrics[name] for name in kept}
    target = scale.place(cell)
    target.parent.mkdir(parents=True, exist_ok=True)
    write_text(target, json.dumps(record, indent=1) + "\n")
    return f"{cell.name}: {100 * run.accuracy:.2f} % in {run.metrics['seconds']:.0f} s"


def found(scale: Scale, cell: Cell) -> dict[str, Any] | None:
    place = scale.place(cell)
    return collected(scale).get(cell.name) or (json.loads(place.read_text()) if place.exists() else None)


@cache
def collected(scale: Scale) -> dict[str, Any]:
    """What was found in earlier runs of this script, by the names of cells."""
    place = scale.results / "runs.json"
    return dict(json.loads(place.read_text())) if place.exists() else {}


def collect(scale: Scale) -> None:
    rows = {cell.name: result for cell in scale.cells() if (result := found(scale, cell)) is not None}
    lines = [f"{json.dumps(name)}: {json.dumps(result)}" for name, result in rows.items()]
    write_text(scale.results / "runs.json", "{\n" + ",\n".join(lines) + "\n}\n")


def weight(result: dict[str, Any], client: str) -> float:
    """The attacker's, under all its names."""
    own = [
        value
        for name, value in result["weights"].items()
        if name == client or name.startswith(f"{client}-sybil-")
    ]
    return sum(own)


def compared(scale: Scale, split: str, method: str, attack: str) -> dict[str, float] | None:
    """Means over seeds, in points: what the attacker gained, and what everybody lost."""
    gains: dict[str, list[float]] = {}
    for seed in scale.seeds:
        attacked = found(scale, Cell(split, method, attack, seed))
        honest = found(scale, Cell(split, method, "honest", seed))
        if attacked is None or honest is None:
            continue
        client = SPLITS[split]
        gains.setdefault("weight", []).append(100 * (weight(attacked, client) - weight(honest, client)))
        for name in ("accuracy", "rare_class_accuracy"):
            if honest[name] is not None:
                gains.setdefault(name, []).append(100 * (honest[name] - attacked[name]))
        gains.setdefault("excluded", []).append(float(bool(attacked["excluded"])))
    return {name: mean(values) for name, values in gains.items()} or None


def matrix(scale: Scale) -> str:
    """Weight gained and accuracy lost, a table for each split."""
    titles = {"weight": "weight gained by the attacker", "accuracy": "accuracy lost"}
    titles["rare_class_accuracy"] = "rare-class accuracy lost"
    lines: list[str] = []
    for split in SPLITS:
        for measure_name, title in titles.items():
            rows = []
            for attack in list(ATTACKS)[1:]:
                got = [compared(scale, split, method, attack) for method in METHODS]
                if any(one is not None and measure_name in one for one in got):
                    rows.append(f"| {attack} | " + " | ".join(shown(one, measure_name) for one in got) + " |")
            if rows:
                lines += [f"**{split}: {title}, in points**", "", "| | " + " | ".join(METHODS) + " |"]
                lines += ["|---" * (len(METHODS) + 1) + "|", *rows, ""]
    lines.append("`!`: an upload was left out as not finite in at least one run.")
    return "\n".join(lines) + "\n"


def gained(scale: Scale, split: str) -> Table:
    """Attack to method to points of weight."""
    table = {}
    for attack in list(ATTACKS)[1:]:
        got = {method: compared(scale, split, method, attack) for method in METHODS}
        table[attack] = {method: one["weight"] for method, one in got.items() if one is not None}
    return {attack: cells for attack, cells in table.items() if cells}


def shown(gains: dict[str, float] | None, name: str) -> str:
    if gains is None or name not in gains:
        return "–"
    return f"{gains[name]:+z.1f}" + ("!" if gains["excluded"] else "")


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--only", default="", help="a part of the cells' names, as in pls-celm-")
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--smoke", action="store_true")
    given = parser.parse_args()
    scale = SMOKE if given.smoke else FULL
    wanted = [cell for cell in scale.cells() if given.only in cell.name]
    with ProcessPoolExecutor(given.processes, multiprocessing.get_context("spawn")) as pool:
        for line in pool.map(measure, [scale] * len(wanted), wanted):
            if line:
                print(line, flush=True)
    scale.results.mkdir(parents=True, exist_ok=True)
    collect(scale)
    write_text(scale.results / "table.md", matrix(scale))
    pictures = {
        f"{split}: the attacker is {client}": table
        for split, client in SPLITS.items()
        if (table := gained(scale, split))
    }
    label = "points of weight gained over honest behaviour"
    figure = panels(pictures, list(METHODS), label=label, limit=50, shown="{:+z.1f}".format, colours="RdBu_r")
    save(figure, scale.results / "gained.svg")
