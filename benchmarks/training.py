"""How fast clients are trained: celm's engine beside the machine's limit and beside rivals, as ratios of one run.

    CELM_DATA=... python benchmarks/training.py [--model mlp|cnn] [--rounds 5] [--repeats 5] [--quick]
        [--flower PYTHON] [--pfl PYTHON] [--fedlab PYTHON] [--fluke PYTHON]

Work: the paper's MLP on FashionMNIST and its CNN on CIFAR-10 (without cropping and flipping, which not all rivals
have), Pure Label Skew among 5 clients, batches of 128, SGD, one epoch a round, plain averaging. All sides start from
the same weights and the same dealt data, and play one round to warm up; a round is timed from the global model to
the next one, evaluation left out on all sides. celm and every rival take turns, each in fresh processes, and a ratio
is taken within a turn; shown are the medians over turns, with the least and the most.

Limit: the floating-point work of a round (benchmarks/limits.py) at the rate measured in the same turn, with one
worker a core. For this, clients are two a worker: of five, one worker has three and the other two, and waits.

Rivals: benchmarks/rivals, a file each. Those that are packages live in environments of their own, whose Python is
given by an option or a variable such as CELM_BENCH_PFL; without one, a rival is noted as not installed.

Targets: 10 times as fast as the DataLoader loop, both as it is mostly written (a thread a core) and in its best
form, 5 times as fast as Flower's simulation, on the MLP 1.5 times as fast as the best of all; and 0.7 (MLP) and 0.5
(CNN) of the limit at the layers' own shapes. Measure on a machine at rest: where others work too, rivals with several
threads wait for one another and look far slower than they are.
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
from celm.engines.choice import available_cores, engine_for
from celm.federation.assembly import Federation, assemble, resolve
from celm.federation.experiment import Experiment
from celm.federation.rounds import begin, play
from celm.metrics.accuracy import accuracy_of
from limits import flops_per_sample, layers_of, rates
from opponents import Rival, play_rival, rivals, settings_of, write_data
from timing import interleaved, machine, median_and_spread, timed

MODELS: dict[str, dict[str, Any]] = {
    "mlp": {"name": "fashion_mnist"},
    "cnn": {"name": "cifar10", "augment": False},
}
"""Model to the dataset it is trained on."""
CLIENTS, BATCH = 5, 128
OUT = Path("results/bench/training.json")
LEFT_OUT_IF_QUICK = ("flower", "dataloader, two loading processes", "pfl", "fedlab", "fluke")
TIMES: list[tuple[str, float]] = [("dataloader", 10), ("best dataloader", 10), ("flower", 5)]
TARGETS: dict[str, tuple[list[tuple[str, float]], float]] = {
    "mlp": ([*TIMES, ("best", 1.5)], 0.7),
    "cnn": (TIMES, 0.5),
}
"""Model to what is wanted: so many times as fast as a rival, and such a part of the limit at the layers' shapes."""


def federation_of(model: str, dataset: Mapping[str, Any], clients: int, workers: int) -> Federation:
    tables = {
        "dataset": dict(dataset),
        "split": {"name": "pls", "clients": clients},
        "model": model,
        "train": {"batch": BATCH, "decay_at": []},
        "rule": "fedavg",
        "run": {"rounds": 10**6, "evaluate_every": 10**6, "workers": workers},
    }
    return assemble(resolve(Experiment.parse(tables)))


def samples_of(federation: Federation) -> int:
    return sum(len(holding.rows) for holding in federation.workbench.holdings.values())


def play_celm(federation: Federation, rounds: int) -> dict[str, Any]:
    """One round to warm up, and `rounds` that count; with new workers."""
    with closing(engine_for(federation, rounds)) as engine:
        state, seconds = begin(federation), []
        for _ in range(rounds + 1):
            played, taken = timed(play, federation, state, engine)
            state = played.state
            seconds.append(taken)
        counts = engine.evaluate([state.model])[0]
    return {"seconds": seconds[1:], "accuracy": accuracy_of(counts, federation.dealing.rare_classes).accuracy}


def measure(model: str, given: argparse.Namespace) -> dict[str, Any]:
    """All cases of a model in turns."""
    dataset = MODELS[model] if given.dataset is None else {"name": given.dataset}
    cores = given.workers
    federation = federation_of(model, dataset, CLIENTS, cores)
    even = federation_of(model, dataset, 2 * cores, cores)
    layers = layers_of(federation.workbench.module, federation.facts.input_shape)
    settings = settings_of(federation, given.rounds, cores)
    known = {name: rival for name, rival in rivals(cores).items() if not given.only or name in given.only}
    pythons = {name: python_of(rival, given) for name, rival in known.items()}
    with tempfile.TemporaryDirectory() as folder:
        data = Path(folder) / "data.safetensors"
        write_data(federation, data)
        cases: dict[str, Callable[[], dict[str, Any]]] = {
            "rates": partial(rates, layers, BATCH, cores, given.window),
            "celm, even": partial(play_celm, even, given.rounds),
            "celm": partial(play_celm, federation, given.rounds),
        }
        cases |= {
            name: partial(play_rival, rival, python, data, settings)
            for name, rival in known.items()
            if (python := pythons[name])
        }
        found = interleaved(cases, given.repeats, partial(tell, model))
    work = {
        "dataset": dict(dataset),
        "layers": settings["layers"],
        "flops_per_sample": flops_per_sample(layers),
        "clients": CLIENTS,
        "samples": samples_of(federation),
        "batch": BATCH,
        "workers": cores,
    }
    rows = {
        name: compare(found[name], found["celm"])
        if name in found
        else {"not installed": True, "install": rival.install}
        for name, rival in known.items()
    }
    report = {
        "work": work,
        "celm": summary(found["celm"]),
        "limit": limit(found, work["flops_per_sample"], samples_of(federation), samples_of(even)),
        "rivals": rows,
    }
    return {**report, "targets": targets(model, report)}


def python_of(rival: Rival, given: argparse.Namespace) -> str | None:
    """The Python that can run a rival; None where it is not installed."""
    if not rival.package:
        return sys.executable
    return getattr(given, rival.package) or None


def tell(model: str, name: str, found: Mapping[str, Any]) -> None:
    told = (
        {"seconds": median(found["seconds"]), "accuracy": found["accuracy"]} if "seconds" in found else found
    )
    said = ", ".join(
        f"{key} {value:.4g}" if isinstance(value, float) else value for key, value in told.items()
    )
    print(f"{model}  {name:24} {said}", flush=True)


def summary(turns: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Seconds of a round over all turns; what else was said, of the last turn."""
    last = {key: value for key, value in turns[-1].items() if key not in ("seconds", "start_up")}
    found = {
        "seconds": median_and_spread(list(chain.from_iterable(turn["seconds"] for turn in turns))),
        **last,
    }
    if "start_up" in turns[-1]:
        found["start_up"] = median_and_spread([turn["start_up"] for turn in turns])
    return found


def compare(turns: Sequence[Mapping[str, Any]], ours: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """A rival's round in celm's rounds of the same turn: how many times as fast celm is."""
    failed = [turn for turn in turns if "failed" in turn]
    if failed:
        return dict(failed[-1])
    pairs = zip(turns, ours, strict=True)
    times = [median(turn["seconds"]) / median(own["seconds"]) for turn, own in pairs]
    return {"times": median_and_spread(times), **summary(turns)}


def limit(
    found: Mapping[str, Sequence[Mapping[str, Any]]], flops: int, samples: int, even_samples: int
) -> dict[str, Any]:
    """Rates, and the part of each that celm reaches: with as many clients for every worker, and with five."""
    told: dict[str, Any] = {}
    for name in ("square", "layers"):
        speeds = [turn[name] for turn in found["rates"]]

        def parts(case: str, count: int, speeds: Sequence[float] = speeds) -> dict[str, Any]:
            taken = [median(turn["seconds"]) for turn in found[case]]
            return median_and_spread(
                [count * flops / speed / own for speed, own in zip(speeds, taken, strict=True)]
            )

        told[name] = {
            "gigaflops_per_second": median_and_spread([speed / 1e9 for speed in speeds]),
            "reached": parts("celm, even", even_samples),
            "reached_with_five_clients": parts("celm", samples),
        }
    return told


def targets(model: str, report: Mapping[str, Any]) -> list[dict[str, Any]]:
    """What was wanted and what was found; None where it could not be measured."""
    times = {name: row["times"]["median"] for name, row in report["rivals"].items() if "times" in row}
    wanted_times, wanted_part = TARGETS[model]
    told = []
    for rival, wanted in wanted_times:
        kind = rival.removeprefix("best").strip()
        alike = [name for name in times if name.startswith(kind)] if rival != kind else [rival]
        name = min(alike, key=lambda name: times.get(name, 0.0), default=rival)
        told.append(target(f"times as fast as {rival}", wanted, times.get(name), name))
    reached = report["limit"]["layers"]["reached"]["median"]
    return [*told, target("part of the limit at the layers' shapes", wanted_part, reached)]


def target(what: str, wanted: float, found: float | None, rival: str = "") -> dict[str, Any]:
    about = {"what": what, "rival": rival} if rival else {"what": what}
    return {**about, "wanted": wanted, "found": found, "reached": None if found is None else found >= wanted}


def parsed(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", choices=list(MODELS), help="one of the two; by default both")
    parser.add_argument("--rounds", type=int, help="rounds that count, of each turn: 5")
    parser.add_argument("--repeats", type=int, help="turns: 5")
    parser.add_argument("--quick", action="store_true", help="the MLP alone, one turn, fewer rivals")
    parser.add_argument(
        "--only", metavar="NAME", nargs="+", choices=list(rivals(1)), help="these rivals alone, for trials"
    )
    parser.add_argument("--workers", type=int, default=available_cores(), help="by default one a core")
    parser.add_argument("--window", type=float, default=1.0, help="seconds that each rate is measured for")
    parser.add_argument("--dataset", help="another one, for trials: digits needs no files")
    for package in ("flower", "pfl", "fedlab", "fluke"):
        named = os.environ.get(f"CELM_BENCH_{package.upper()}", "")
        parser.add_argument(
            f"--{package}", metavar="PYTHON", default=named, help=f"a Python that has {package}"
        )
    parser.add_argument(
        "--out", type=Path, help=f"by default {OUT}; a quick run writes only if this is given"
    )
    given = parser.parse_args(arguments)
    if given.quick:
        given.model = "mlp"
        given.only = given.only or [name for name in rivals(1) if name not in LEFT_OUT_IF_QUICK]
    else:
        given.out = given.out or OUT
    given.rounds = given.rounds or (2 if given.quick else 5)
    given.repeats = given.repeats or (1 if given.quick else 5)
    return given


def main(arguments: Sequence[str] | None = None) -> None:
    given = parsed(arguments)
    torch.set_num_threads(1)
    for model in [given.model] if given.model else MODELS:
        about = {"machine": machine(), "rounds": given.rounds, "repeats": given.repeats}
        report = {**about, **measure(model, given)}
        if given.out:
            keep(given.out, model, report)
        for each in report["targets"]:
            found = "not measured" if each["found"] is None else f"{each['found']:.2f}"
            print(f"{model}  {each['what']}: {found}, wanted {each['wanted']}", flush=True)


def keep(path: Path, model: str, report: Mapping[str, Any]) -> None:
    """Write a model's report beside the other model's, which another run may have made."""
    path.parent.mkdir(parents=True, exist_ok=True)
    others = json.loads(path.read_text()) if path.exists() else {}
    write_text(path, dump_json({**others, model: report}, indent=1) + "\n")


if __name__ == "__main__":
    main()
