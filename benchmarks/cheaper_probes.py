"""Cheaper probes: what each costs, and how near its scores are to the whole probe's.

    CELM_DATA=... python benchmarks/cheaper_probes.py [--seeds 42 43 44] [--quick]

Every split is run for its five warm-up rounds with the whole probe (L = 200, η = 0.01; FashionMNIST with the MLP, 5
clients; for samples of classes EMNIST with 47 classes), which gives the trajectory. At each round every cheaper probe
is made of the very same models from the very same starting inputs:

- longer: n steps of size 2 / n, the same way walked in fewer steps;
- cut: n steps of the same size, the probe ended early;
- tolerance: step doubling until the bound on the score error is met (celm.method.cheaper);
- classes: m of the K classes;
- bfloat16: slopes in half precision; inputs, Adam and the logits reached in float32.

Cost is in gradient steps x classes, as a part of the whole probe's, and in seconds. Error is the largest difference
of a client's score, in points of weight (percent); rank is Spearman's correlation of scores over clients. The first
round starts from noise, the others where the whole probe of the round before ended, so that errors do not add up over
rounds; in a run they would, and the last round's weights of a run with that probe are compared too.

Safe, said before the first measurement: over all splits but IID (where ranks are noise), seeds and rounds, an error of
at most 1 point and a mean rank of at least 0.99. The cheapest safe one with fixed steps becomes `probe=fast`.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import mean, median
from typing import Any

import torch
from scipy.stats import spearmanr
from torch import Tensor

from celm.base.files import dump_json, write_text
from celm.engines.in_process import InProcess
from celm.federation.assembly import Federation, assemble, resolve
from celm.federation.experiment import Experiment
from celm.federation.rounds import begin, play
from celm.method.cheaper import refined, sampled_classes
from celm.method.evidence import evidence, scores
from celm.method.probe import Probe, probe
from celm.method.stacking import Stack
from timing import machine

SPLITS: dict[str, dict[str, Any]] = {
    "pls": {"name": "pls"},
    "sls": {"name": "sls"},
    "dirichlet 0.05": {"name": "dirichlet", "alpha": 0.05},
    "dirichlet 0.5": {"name": "dirichlet", "alpha": 0.5},
    "maverick": {"name": "maverick"},
    "free rider": {"name": "free_rider"},
    "iid": {"name": "iid"},
}
ROUNDS, STEPS, RATE, L2 = 5, 200, 0.01, 1e-3
POINTS = 100.0


@dataclass(frozen=True)
class Scene:
    """What was probed in a round: models and where the probe began."""

    number: int
    stack: Stack
    start: Tensor
    classes: int

    def walk(self, steps: int, rate: float, columns: list[int] | None = None, half: bool = False) -> Probe:
        wanted = list(range(self.classes)) if columns is None else columns
        kind = torch.bfloat16 if half else torch.float32
        return probe(self.stack, self.start[:, wanted], wanted, steps=steps, lr=rate, l2=L2, precision=kind)


@dataclass
class Counted:
    """Counts the gradient steps of a scene's walks."""

    scene: Scene
    steps: int = 0

    def walk(self, steps: int, rate: float) -> Probe:
        self.steps += steps
        return self.scene.walk(steps, rate)


Cheaper = Callable[[Scene], tuple[Tensor, float]]
"""Scores of a scene, and the part of the whole probe's steps that they took."""


def scores_of(found: Probe) -> Tensor:
    return scores(evidence(found.logits[1:], found.logits[0]))


def with_steps(steps: int, rate: float) -> Cheaper:
    return lambda scene: (scores_of(scene.walk(steps, rate)), steps / STEPS)


def with_tolerance(tolerance: float) -> Cheaper:
    def cheaper(scene: Scene) -> tuple[Tensor, float]:
        counted = Counted(scene)
        found, _ = refined(counted.walk, scores_of, STEPS, RATE, tolerance)
        return scores_of(found), counted.steps / STEPS

    return cheaper


def with_classes(count: int, seed: int) -> Cheaper:
    def cheaper(scene: Scene) -> tuple[Tensor, float]:
        columns = sampled_classes(scene.classes, count, seed, scene.number)
        return scores_of(scene.walk(STEPS, RATE, columns)), len(columns) / scene.classes

    return cheaper


WHOLE = "whole"
CHEAPER: dict[str, Cheaper] = {
    WHOLE: with_steps(STEPS, RATE),
    **{f"longer: {n} steps of {2 / n:g}": with_steps(n, 2 / n) for n in (100, 50, 25, 10)},
    **{f"cut: {n} steps of {RATE:g}": with_steps(n, RATE) for n in (100, 50, 25)},
    **{f"tolerance {t:g}": with_tolerance(t) for t in (0.02, 0.01, 0.005)},
}


def scenes(settings: dict[str, Any]) -> list[Scene]:
    """The probes of a run's warm-up."""
    kept: list[Scene] = []
    federation = assemble(resolve(Experiment.parse(settings)))

    def watched(models: Any, inputs: Sequence[Tensor], classes: Any, **how: Any) -> Probe:
        start = torch.stack(list(inputs))
        kept.append(Scene(len(kept) + 1, models, start, federation.facts.classes))
        return probe(models, start, classes, **how)

    play_all(replace(federation, facts=replace(federation.facts, prober=watched)))
    return kept


def play_all(federation: Federation) -> dict[str, float]:
    """The weights after the warm-up."""
    state, engine = begin(federation), InProcess(federation.workbench)
    standing: dict[str, float] = {}
    for _ in range(ROUNDS):
        played = play(federation, state, engine)
        state, standing = played.state, played.record["weights"]
    return standing


def settings_of(dataset: str, split: dict[str, Any], seed: int, **probe: Any) -> dict[str, Any]:
    return {
        "dataset": dataset,
        "split": split,
        "rule": {"name": "celm", "warmup": ROUNDS},
        "probe": probe,
        "run": {"rounds": 100, "seed": seed, "workers": 0, "evaluate_every": 100},
    }


def compare(where: str, scene: Scene, cheaper: dict[str, Cheaper]) -> list[dict[str, Any]]:
    whole, rows = None, []
    for name, find in cheaper.items():
        start = time.perf_counter()
        found, cost = find(scene)
        seconds = time.perf_counter() - start
        whole = found if whole is None else whole
        rows.append(
            {
                "where": where,
                "round": scene.number,
                "probe": name,
                "steps": cost,
                "seconds": seconds,
                "error": POINTS * float((found - whole).abs().max()),
                "rank": float(spearmanr(found, whole).statistic),
            }
        )
    return rows


def summary(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    whole = {(row["where"], row["round"]): row["seconds"] for row in rows if row["probe"] == WHOLE}
    found = []
    for name in dict.fromkeys(row["probe"] for row in rows):
        mine = [row for row in rows if row["probe"] == name]
        skewed = [row for row in mine if not row["where"].startswith("iid")]
        ratios = [row["seconds"] / whole[row["where"], row["round"]] for row in mine]
        found.append(
            {
                "probe": name,
                "cost_in_steps": mean(row["steps"] for row in mine),
                "cost_in_seconds": median(ratios),
                "mean_error": mean(row["error"] for row in mine),
                "largest_error": max(row["error"] for row in mine),
                "largest_error_but_iid": max(row["error"] for row in skewed),
                "mean_rank_but_iid": mean(row["rank"] for row in skewed),
                "lowest_rank_but_iid": min(row["rank"] for row in skewed),
                "probes": len(mine),
            }
        )
        last = found[-1]
        last["safe"] = last["largest_error_but_iid"] <= 1 and round(last["mean_rank_but_iid"], 9) >= 0.99
    return found


def final_weights(seeds: list[int]) -> list[dict[str, Any]]:
    """The weights after a warm-up that was done with a cheaper probe throughout."""
    rows = []
    for name, split in SPLITS.items():
        for seed in seeds:
            whole = play_all(assemble(resolve(Experiment.parse(settings_of("fashion_mnist", split, seed)))))
            for label, how in (
                ("longer: 50 steps of 0.04", {"steps": 50, "lr": 0.04}),
                ("tolerance 0.01", {"tolerance": 0.01}),
            ):
                settings = settings_of("fashion_mnist", split, seed, **how)
                cheap = play_all(assemble(resolve(Experiment.parse(settings))))
                error = max(abs(cheap[client] - weight) for client, weight in whole.items())
                rank = spearmanr([cheap[client] for client in whole], list(whole.values())).statistic
                rows.append(
                    {"where": f"{name}, {seed}", "probe": label, "error": POINTS * error, "rank": float(rank)}
                )
                print(rows[-1], flush=True)
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seeds", type=int, nargs="+", default=[42, 43, 44])
    parser.add_argument("--quick", action="store_true", help="one split and seed, no samples of classes")
    parser.add_argument("--out", type=Path, default=Path("results/bench/cheaper_probes.json"))
    given = parser.parse_args()
    torch.set_num_threads(1)
    facts = machine()
    rows: list[dict[str, Any]] = []
    seeds = given.seeds[:1] if given.quick else given.seeds
    for name, split in list(SPLITS.items())[: 1 if given.quick else None]:
        for seed in seeds:
            for scene in scenes(settings_of("fashion_mnist", split, seed)):
                half: dict[str, Cheaper] = {
                    "bfloat16": lambda scene: (scores_of(scene.walk(STEPS, RATE, half=True)), 1.0)
                }
                rows += compare(f"{name}, {seed}", scene, CHEAPER | half)
            print(name, seed, flush=True)
    many: list[dict[str, Any]] = []
    for name in () if given.quick else ("pls", "dirichlet 0.05"):
        for seed in seeds:
            samples = {f"classes: {m} of 47": with_classes(m, seed) for m in (24, 12, 6)}
            for scene in scenes(settings_of("emnist47", SPLITS[name], seed)):
                many += compare(f"{name}, {seed}", scene, {WHOLE: CHEAPER[WHOLE]} | samples)
            print("emnist47", name, seed, flush=True)
    found = {
        "machine": facts,
        "seeds": seeds,
        "fashion_mnist": summary(rows),
        "emnist47": summary(many),
        "weights_after_the_warm_up": [] if given.quick else final_weights(seeds),
    }
    write_text(given.out, dump_json(found, indent=1) + "\n")
    for row in found["fashion_mnist"] + found["emnist47"]:
        print(
            f"{row['probe']:28} {row['cost_in_steps']:.2f} of the steps, error at most"
            f" {row['largest_error_but_iid']:.2f} points, rank {row['mean_rank_but_iid']:.3f}"
        )


if __name__ == "__main__":
    main()
