"""Compare the training speed of celm's engine with the machine's limit and with rivals.

    CELM_DATA=... python benchmarks/training.py [--model mlp|cnn] [--rounds 5] [--repeats 5] [--quick]
        [--flower PYTHON] [--pfl PYTHON] [--fedlab PYTHON] [--fluke PYTHON]

Work: the paper's MLP on FashionMNIST and its CNN on CIFAR-10, without cropping and flipping, which not all rivals have.
Pure Label Skew among 5 clients, batches of 128, SGD, one epoch per round, plain averaging. celm and all rivals start
from the same weights and the same partition, and run one warm-up round. A round is timed from one global model to the
next, without evaluation. celm and every rival take turns, each in new processes. Ratios are computed within a turn; the
report has the median over turns, with minimum and maximum.

Limit: the floating-point operations of a round (benchmarks/limits.py) at the rate measured in the same turn, with one
worker per core. For this, each worker has two clients: with five clients and two workers, one worker would wait.

Rivals: one file each in benchmarks/rivals. Rivals that are packages have their own environments. An option, or a
variable such as CELM_BENCH_PFL, names the Python of an environment; without it, the rival is reported as not installed.

Targets: 10 times as fast as the DataLoader loop, both in its common form (one thread per core) and in its best form; 5
times as fast as Flower's simulation; on the MLP 1.5 times as fast as the best rival; 0.7 (MLP) and 0.5 (CNN) of the
limit at the layers' own shapes. Measure on an idle machine: under load, rivals with several threads wait for each other
and appear far slower than they are.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from functools import partial
from itertools import chain
from pathlib import Path
from statistics import median
from typing import Any

import torch

from celm.base.files import dump_json, write_text
from celm.engines.select import available_cores, select_engine
from celm.experiment.config import Experiment
from celm.federation.build import Federation, build_federation, resolve_defaults
from celm.federation.round import initial_state, run_round
from celm.metrics.accuracy import compute_accuracy
from limits import flops_per_sample, layers_of, rates
from opponents import Rival, rival_settings, rivals, run_rival, write_data
from timing import describe_machine, interleaved, median_and_spread, timed

MODELS: dict[str, dict[str, Any]] = {
    "mlp": {"name": "fashion_mnist"},
    "cnn": {"name": "cifar10", "augment": False},
}
"""Model to the dataset it is trained on."""
CLIENTS, BATCH = 5, 128
OUT = Path("results/bench/training.json")
SKIPPED_IF_QUICK = ("flower", "dataloader, two loading processes", "pfl", "fedlab", "fluke")
TARGET_RATIOS: list[tuple[str, float]] = [("dataloader", 10), ("best dataloader", 10), ("flower", 5)]
TARGETS: dict[str, tuple[list[tuple[str, float]], float]] = {
    "mlp": ([*TARGET_RATIOS, ("best", 1.5)], 0.7),
    "cnn": (TARGET_RATIOS, 0.5),
}
"""Model to its targets: speed ratios to rivals, and the fraction of the limit at the layers' shapes."""


def make_federation(model: str, dataset: Mapping[str, Any], clients: int, workers: int) -> Federation:
    tables = {
        "dataset": dict(dataset),
        "split": {"name": "pls", "clients": clients},
        "model": model,
        "train": {"batch": BATCH, "decay_at": []},
        "rule": "fedavg",
        "run": {"rounds": 10**6, "evaluate_every": 10**6, "workers": workers},
    }
    return build_federation(resolve_defaults(Experiment.parse(tables)))


def count_samples(federation: Federation) -> int:
    return sum(len(client_data.rows) for client_data in federation.trainer.client_data.values())


def run_celm(federation: Federation, rounds: int) -> dict[str, Any]:
    """Run one warm-up round and `rounds` timed rounds, with new workers."""
    with closing(select_engine(federation, rounds)) as engine:
        state, seconds = initial_state(federation), []
        for _ in range(rounds + 1):
            result, elapsed = timed(run_round, federation, state, engine)
            state = result.state
            seconds.append(elapsed)
        counts = engine.evaluate([state.model])[0]
    return {
        "seconds": seconds[1:],
        "accuracy": compute_accuracy(counts, federation.partition.rare_classes).accuracy,
    }


def measure(model: str, options: argparse.Namespace) -> dict[str, Any]:
    """Measure all cases of a model in turns."""
    dataset = MODELS[model] if options.dataset is None else {"name": options.dataset}
    cores = options.workers
    federation = make_federation(model, dataset, CLIENTS, cores)
    even_federation = make_federation(model, dataset, 2 * cores, cores)
    layers = layers_of(federation.trainer.module, federation.context.input_shape)
    settings = rival_settings(federation, options.rounds, cores)
    selected = {
        name: rival for name, rival in rivals(cores).items() if not options.only or name in options.only
    }
    pythons = {name: find_python(rival, options) for name, rival in selected.items()}
    with tempfile.TemporaryDirectory() as folder:
        data = Path(folder) / "data.safetensors"
        write_data(federation, data)
        cases: dict[str, Callable[[], dict[str, Any]]] = {
            "rates": partial(rates, layers, BATCH, cores, options.window),
            "celm, even": partial(run_celm, even_federation, options.rounds),
            "celm": partial(run_celm, federation, options.rounds),
        }
        cases |= {
            name: partial(run_rival, rival, python, data, settings)
            for name, rival in selected.items()
            if (python := pythons[name])
        }
        turns = interleaved(cases, options.repeats, partial(print_turn, model))
    work = {
        "dataset": dict(dataset),
        "layers": settings["layers"],
        "flops_per_sample": flops_per_sample(layers),
        "clients": CLIENTS,
        "samples": count_samples(federation),
        "batch": BATCH,
        "workers": cores,
    }
    rows = {
        name: summarise_rival(turns[name], turns["celm"])
        if name in turns
        else {"not installed": True, "install": rival.install}
        for name, rival in selected.items()
    }
    report = {
        "work": work,
        "celm": summarise_turns(turns["celm"]),
        "limit": measure_limits(
            turns, work["flops_per_sample"], count_samples(federation), count_samples(even_federation)
        ),
        "rivals": rows,
    }
    return {**report, "targets": check_targets(model, report)}


def find_python(rival: Rival, options: argparse.Namespace) -> str | None:
    """Return the Python that can run a rival; None if the rival is not installed."""
    if not rival.package:
        return sys.executable
    return getattr(options, rival.package) or None


def print_turn(model: str, name: str, result: Mapping[str, Any]) -> None:
    values = (
        {"seconds": median(result["seconds"]), "accuracy": result["accuracy"]}
        if "seconds" in result
        else result
    )
    text = ", ".join(
        f"{key} {value:.4g}" if isinstance(value, float) else value for key, value in values.items()
    )
    print(f"{model}  {name:24} {text}", flush=True)


def summarise_turns(turns: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the seconds of a round over all turns, and the other values of the last turn."""
    last = {key: value for key, value in turns[-1].items() if key not in ("seconds", "start_up")}
    stats = {
        "seconds": median_and_spread(list(chain.from_iterable(turn["seconds"] for turn in turns))),
        **last,
    }
    if "start_up" in turns[-1]:
        stats["start_up"] = median_and_spread([turn["start_up"] for turn in turns])
    return stats


def summarise_rival(turns: Sequence[Mapping[str, Any]], ours: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return how many times as fast as a rival celm is, within each turn."""
    failed = [turn for turn in turns if "failed" in turn]
    if failed:
        return dict(failed[-1])
    pairs = zip(turns, ours, strict=True)
    times = [median(turn["seconds"]) / median(our_turn["seconds"]) for turn, our_turn in pairs]
    return {"times": median_and_spread(times), **summarise_turns(turns)}


def measure_limits(
    turns: Mapping[str, Sequence[Mapping[str, Any]]], flops: int, samples: int, even_samples: int
) -> dict[str, Any]:
    """Return the rates, and the fraction that celm reaches: with equal numbers of clients per worker, and with five."""
    limits: dict[str, Any] = {}
    for name in ("square", "layers"):
        speeds = [turn[name] for turn in turns["rates"]]

        def reached_fractions(case: str, count: int, speeds: Sequence[float] = speeds) -> dict[str, Any]:
            elapsed = [median(turn["seconds"]) for turn in turns[case]]
            return median_and_spread(
                [count * flops / speed / seconds for speed, seconds in zip(speeds, elapsed, strict=True)]
            )

        limits[name] = {
            "gigaflops_per_second": median_and_spread([speed / 1e9 for speed in speeds]),
            "reached": reached_fractions("celm, even", even_samples),
            "reached_with_five_clients": reached_fractions("celm", samples),
        }
    return limits


def check_targets(model: str, report: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Compare measurements with targets; a value is None if it could not be measured."""
    times = {name: row["times"]["median"] for name, row in report["rivals"].items() if "times" in row}
    goal_ratios, goal_fraction = TARGETS[model]
    rows = []
    for rival, goal in goal_ratios:
        kind = rival.removeprefix("best").strip()
        candidates = [name for name in times if name.startswith(kind)] if rival != kind else [rival]
        name = min(candidates, key=lambda name: times.get(name, 0.0), default=rival)
        rows.append(make_target(f"times as fast as {rival}", goal, times.get(name), name))
    reached = report["limit"]["layers"]["reached"]["median"]
    return [*rows, make_target("part of the limit at the layers' shapes", goal_fraction, reached)]


def make_target(description: str, goal: float, measured: float | None, rival: str = "") -> dict[str, Any]:
    labels = {"what": description, "rival": rival} if rival else {"what": description}
    return {
        **labels,
        "wanted": goal,
        "found": measured,
        "reached": None if measured is None else measured >= goal,
    }


def parse_options(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", choices=list(MODELS), help="model to measure; by default both")
    parser.add_argument("--rounds", type=int, help="timed rounds of each turn; by default 5")
    parser.add_argument("--repeats", type=int, help="number of turns; by default 5")
    parser.add_argument("--quick", action="store_true", help="only the MLP, one turn, fewer rivals")
    parser.add_argument(
        "--only", metavar="NAME", nargs="+", choices=list(rivals(1)), help="only these rivals, for tests"
    )
    parser.add_argument("--workers", type=int, default=available_cores(), help="by default one per core")
    parser.add_argument("--window", type=float, default=1.0, help="seconds of each measurement of a rate")
    parser.add_argument("--dataset", help="another dataset, for tests; digits needs no files")
    for package in ("flower", "pfl", "fedlab", "fluke"):
        default_python = os.environ.get(f"CELM_BENCH_{package.upper()}", "")
        parser.add_argument(
            f"--{package}",
            metavar="PYTHON",
            default=default_python,
            help=f"Python with the package {package}",
        )
    parser.add_argument(
        "--out", type=Path, help=f"by default {OUT}; a quick run writes only if this is given"
    )
    options = parser.parse_args(arguments)
    if options.quick:
        options.model = "mlp"
        options.only = options.only or [name for name in rivals(1) if name not in SKIPPED_IF_QUICK]
    else:
        options.out = options.out or OUT
    options.rounds = options.rounds or (2 if options.quick else 5)
    options.repeats = options.repeats or (1 if options.quick else 5)
    return options


def main(arguments: Sequence[str] | None = None) -> None:
    options = parse_options(arguments)
    torch.set_num_threads(1)
    for model in [options.model] if options.model else MODELS:
        metadata = {"machine": describe_machine(), "rounds": options.rounds, "repeats": options.repeats}
        report = {**metadata, **measure(model, options)}
        if options.out:
            save_report(options.out, model, report)
        for row in report["targets"]:
            measured = "not measured" if row["found"] is None else f"{row['found']:.2f}"
            print(f"{model}  {row['what']}: {measured}, wanted {row['wanted']}", flush=True)


def save_report(path: Path, model: str, report: Mapping[str, Any]) -> None:
    """Write a model's report, and keep the report of the other model that the file may contain."""
    path.parent.mkdir(parents=True, exist_ok=True)
    others = json.loads(path.read_text()) if path.exists() else {}
    write_text(path, dump_json({**others, model: report}, indent=1) + "\n")


if __name__ == "__main__":
    main()
