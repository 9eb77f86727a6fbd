"""Measure the cost of cheaper probes, and the error of their scores relative to the whole probe.

    CELM_DATA=... python benchmarks/cheaper_probes.py [--seeds 42 43 44] [--quick]

Every split is run for its five warm-up rounds with the whole probe (L = 200, η = 0.01). The data are FashionMNIST with
the MLP and 5 clients; for samples of classes, EMNIST with 47 classes. In each round every cheaper probe is run on the
same models from the same initial inputs:

- longer: n steps of size 2 / n, so that the total distance is the same;
- cut: n steps of the same size, so that the probe ends early;
- tolerance: step doubling until the bound on the score error is met (celm.core.probe_schedules);
- classes: m of the K classes;
- bfloat16: gradients in half precision; inputs, Adam and final logits in float32.

Cost is gradient steps x classes, as a fraction of the whole probe's, and seconds. Error is the largest difference
of a client's score, in points of weight (percent); rank is Spearman's correlation of scores over clients. The first
round starts from noise, the others from the final inputs of the previous round's whole probe. So errors do not
accumulate over rounds. In a run they do, so the final weights of runs with a cheaper probe are compared, too.

The definition of safe was fixed before the first measurement: an error of at most 1 point and a mean rank of at least
0.99, over all seeds, rounds and splits except IID. On IID, ranks are noise. The cheapest safe probe with fixed steps
becomes `probe=fast`.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import mean, median
from typing import Any

import torch
from scipy.stats import spearmanr
from torch import Tensor

from celm.base.errors import CelmError
from celm.base.files import dump_json, write_text
from celm.base.processor import check_bfloat16
from celm.core.evidence import evidence, scores
from celm.core.model_stack import ModelStack
from celm.core.probe import ProbeResult, probe
from celm.core.probe_schedules import StepDoubling, sample_classes
from celm.engines.in_process import InProcessEngine
from celm.experiment.config import Experiment
from celm.federation.build import Federation, build_federation, resolve_defaults
from celm.federation.round import initial_state, run_round
from timing import describe_machine

SPLITS: dict[str, dict[str, Any]] = {
    "pls": {"name": "pls"},
    "sls": {"name": "sls"},
    "dirichlet 0.05": {"name": "dirichlet", "alpha": 0.05},
    "dirichlet 0.5": {"name": "dirichlet", "alpha": 0.5},
    "maverick": {"name": "maverick"},
    "free rider": {"name": "free_rider"},
    "iid": {"name": "iid"},
}
ROUNDS, STEPS, PROBE_LR, L2 = 5, 200, 0.01, 1e-3
POINTS = 100.0


@dataclass(frozen=True)
class ProbeSetup:
    """The models and initial inputs of a round's probe."""

    round_number: int
    stack: ModelStack
    initial_inputs: Tensor
    classes: int

    def run_probe(
        self, steps: int, lr: float, class_subset: list[int] | None = None, half_precision: bool = False
    ) -> ProbeResult:
        targets = list(range(self.classes)) if class_subset is None else class_subset
        dtype = torch.bfloat16 if half_precision else torch.float32
        return probe(
            self.stack, self.initial_inputs[:, targets], targets, steps=steps, lr=lr, l2=L2, precision=dtype
        )


@dataclass
class StepCounter:
    """Counts the gradient steps of probes of one setup."""

    setup: ProbeSetup
    steps: int = 0

    def run_probe(self, steps: int, lr: float) -> ProbeResult:
        self.steps += steps
        return self.setup.run_probe(steps, lr)


CheaperProbe = Callable[[ProbeSetup], tuple[Tensor, float]]
"""Function from a setup to its scores, and to the number of steps as a fraction of the whole probe's."""


def compute_scores(result: ProbeResult) -> Tensor:
    return scores(evidence(result.logits[1:], result.logits[0]))


def with_steps(steps: int, lr: float) -> CheaperProbe:
    return lambda setup: (compute_scores(setup.run_probe(steps, lr)), steps / STEPS)


def with_tolerance(tolerance: float) -> CheaperProbe:
    def cheaper(setup: ProbeSetup) -> tuple[Tensor, float]:
        counter = StepCounter(setup)
        result, _ = StepDoubling(STEPS, PROBE_LR, tolerance).run(counter.run_probe, compute_scores)
        return compute_scores(result), counter.steps / STEPS

    return cheaper


def with_classes(count: int, seed: int) -> CheaperProbe:
    def cheaper(setup: ProbeSetup) -> tuple[Tensor, float]:
        class_subset = sample_classes(setup.classes, count, seed, setup.round_number)
        return compute_scores(setup.run_probe(STEPS, PROBE_LR, class_subset)), len(
            class_subset
        ) / setup.classes

    return cheaper


WHOLE_PROBE = "whole"
CHEAPER_PROBES: dict[str, CheaperProbe] = {
    WHOLE_PROBE: with_steps(STEPS, PROBE_LR),
    **{f"longer: {n} steps of {2 / n:g}": with_steps(n, 2 / n) for n in (100, 50, 25, 10)},
    **{f"cut: {n} steps of {PROBE_LR:g}": with_steps(n, PROBE_LR) for n in (100, 50, 25)},
    **{f"tolerance {t:g}": with_tolerance(t) for t in (0.02, 0.01, 0.005)},
}


def record_probes(settings: dict[str, Any]) -> list[ProbeSetup]:
    """Return the setups of the probes in a run's warm-up."""
    setups: list[ProbeSetup] = []
    federation = build_federation(resolve_defaults(Experiment.parse(settings)))

    def recording_probe(
        models: Any, inputs: Sequence[Tensor], classes: Any, **probe_options: Any
    ) -> ProbeResult:
        initial_inputs = torch.stack(list(inputs))
        setups.append(ProbeSetup(len(setups) + 1, models, initial_inputs, federation.context.classes))
        return probe(models, initial_inputs, classes, **probe_options)

    run_warmup(federation.with_context(probe_fn=recording_probe))
    return setups


def run_warmup(federation: Federation) -> dict[str, float]:
    """Return the weights after the warm-up."""
    state, engine = initial_state(federation), InProcessEngine(federation.trainer)
    weights: dict[str, float] = {}
    for _ in range(ROUNDS):
        result = run_round(federation, state, engine)
        state, weights = result.state, result.record["weights"]
    return weights


def experiment_settings(dataset: str, split: dict[str, Any], seed: int, **probe: Any) -> dict[str, Any]:
    return {
        "dataset": dataset,
        "split": split,
        "rule": {"name": "celm", "warmup": ROUNDS},
        "probe": probe,
        "run": {"rounds": 100, "seed": seed, "workers": 0, "evaluate_every": 100},
    }


def compare_probes(
    run_label: str, setup: ProbeSetup, probes: dict[str, CheaperProbe]
) -> list[dict[str, Any]]:
    reference, rows = None, []
    for name, run_cheaper in probes.items():
        started = time.perf_counter()
        probe_scores, cost = run_cheaper(setup)
        seconds = time.perf_counter() - started
        reference = probe_scores if reference is None else reference
        rows.append(
            {
                "where": run_label,
                "round": setup.round_number,
                "probe": name,
                "steps": cost,
                "seconds": seconds,
                "error": POINTS * float((probe_scores - reference).abs().max()),
                "rank": float(spearmanr(probe_scores, reference).statistic),
            }
        )
    return rows


def summarise_probes(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    whole_seconds = {
        (row["where"], row["round"]): row["seconds"] for row in rows if row["probe"] == WHOLE_PROBE
    }
    summaries = []
    for name in dict.fromkeys(row["probe"] for row in rows):
        probe_rows = [row for row in rows if row["probe"] == name]
        skewed = [row for row in probe_rows if not row["where"].startswith("iid")]
        ratios = [row["seconds"] / whole_seconds[row["where"], row["round"]] for row in probe_rows]
        summaries.append(
            {
                "probe": name,
                "cost_in_steps": mean(row["steps"] for row in probe_rows),
                "cost_in_seconds": median(ratios),
                "mean_error": mean(row["error"] for row in probe_rows),
                "largest_error": max(row["error"] for row in probe_rows),
                "largest_error_but_iid": max(row["error"] for row in skewed),
                "mean_rank_but_iid": mean(row["rank"] for row in skewed),
                "lowest_rank_but_iid": min(row["rank"] for row in skewed),
                "probes": len(probe_rows),
            }
        )
        latest = summaries[-1]
        latest["safe"] = (
            latest["largest_error_but_iid"] <= 1 and round(latest["mean_rank_but_iid"], 9) >= 0.99
        )
    return summaries


def final_weights(seeds: list[int]) -> list[dict[str, Any]]:
    """Compare the weights after a warm-up with a cheaper probe in all rounds to those with the whole probe."""
    rows = []
    for name, split in SPLITS.items():
        for seed in seeds:
            reference = run_warmup(
                build_federation(
                    resolve_defaults(Experiment.parse(experiment_settings("fashion_mnist", split, seed)))
                )
            )
            for label, probe_settings in (
                ("longer: 50 steps of 0.04", {"steps": 50, "lr": 0.04}),
                ("tolerance 0.01", {"tolerance": 0.01}),
            ):
                settings = experiment_settings("fashion_mnist", split, seed, **probe_settings)
                weights = run_warmup(build_federation(resolve_defaults(Experiment.parse(settings))))
                error = max(abs(weights[client] - weight) for client, weight in reference.items())
                rank = spearmanr(
                    [weights[client] for client in reference], list(reference.values())
                ).statistic
                rows.append(
                    {"where": f"{name}, {seed}", "probe": label, "error": POINTS * error, "rank": float(rank)}
                )
                print(rows[-1], flush=True)
    return rows


def half_precision_probe() -> dict[str, CheaperProbe]:
    """Return the probe in bfloat16, by its name; none where the processor cannot execute it."""
    try:
        check_bfloat16(torch.device("cpu"))
    except CelmError as error:
        print(f"without bfloat16: {error}")
        return {}

    def run(setup: ProbeSetup) -> tuple[Tensor, float]:
        return compute_scores(setup.run_probe(STEPS, PROBE_LR, half_precision=True)), 1.0

    return {"bfloat16": run}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seeds", type=int, nargs="+", default=[42, 43, 44])
    parser.add_argument("--quick", action="store_true", help="one split and seed, no samples of classes")
    parser.add_argument("--out", type=Path, default=Path("results/bench/cheaper_probes.json"))
    options = parser.parse_args()
    torch.set_num_threads(1)
    machine_info = describe_machine()
    rows: list[dict[str, Any]] = []
    seeds = options.seeds[:1] if options.quick else options.seeds
    half = half_precision_probe()
    for name, split in list(SPLITS.items())[: 1 if options.quick else None]:
        for seed in seeds:
            for setup in record_probes(experiment_settings("fashion_mnist", split, seed)):
                rows += compare_probes(f"{name}, {seed}", setup, CHEAPER_PROBES | half)
            print(name, seed, flush=True)
    emnist_rows: list[dict[str, Any]] = []
    for name in () if options.quick else ("pls", "dirichlet 0.05"):
        for seed in seeds:
            samples = {f"classes: {m} of 47": with_classes(m, seed) for m in (24, 12, 6)}
            for setup in record_probes(experiment_settings("emnist47", SPLITS[name], seed)):
                emnist_rows += compare_probes(
                    f"{name}, {seed}", setup, {WHOLE_PROBE: CHEAPER_PROBES[WHOLE_PROBE]} | samples
                )
            print("emnist47", name, seed, flush=True)
    report = {
        "machine": machine_info,
        "seeds": seeds,
        "fashion_mnist": summarise_probes(rows),
        "emnist47": summarise_probes(emnist_rows),
        "weights_after_the_warm_up": [] if options.quick else final_weights(seeds),
    }
    write_text(options.out, dump_json(report, indent=1) + "\n")
    for row in report["fashion_mnist"] + report["emnist47"]:
        print(
            f"{row['probe']:28} {row['cost_in_steps']:.2f} of the steps, error at most"
            f" {row['largest_error_but_iid']:.2f} points, rank {row['mean_rank_but_iid']:.3f}"
        )


if __name__ == "__main__":
    main()
