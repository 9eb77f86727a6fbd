"""How time and memory of a probe grow with clients, classes, the size of the model and of its inputs.

    python benchmarks/scaling.py [--quick]

Each point is a process of its own, one thread: some steps of the probe as the library does it by default (so many that
what a probe costs once, such as stacking the weights, counts for little, as in one of 200), on models
of random weights (time and memory do not depend on their values). Memory is the peak resident size less what the
process had before the models were there. Curves are fitted by a power law, seconds = a size^b, in logarithms.

Cost model, fitted to all points but the one that is checked:

    seconds = L (N + 1) (K (f / r + p / s) + w / b)

f floating-point operations of a step for one input (forward, and back to the inputs: 4 for each product), p values of
an input, w those of the model; r, s and b are rates, found by least squares on relative errors. `docs/scaling.md` says
what follows from it.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from dataclasses import asdict, dataclass, field
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import torch
from scipy.optimize import nnls
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from celm.base.files import dump_json, write_text
from celm.method.probe import probe
from celm.method.stacking import Stack
from celm.models import build_model
from celm.models.state import state_of
from timing import machine, peak_megabytes, timed


@dataclass(frozen=True)
class Point:
    """N clients and the global model, K classes."""

    curve: str
    clients: int
    classes: int
    model: str = "mlp"
    options: dict[str, Any] = field(default_factory=dict)
    shape: tuple[int, ...] = (1, 28, 28)
    steps: int = 40
    at_once: int | None = None
    """Classes that are really probed, where all would take too long; seconds are then extrapolated."""


POINTS = [
    *(Point("clients", n, 10, steps=max(50, 2000 // n)) for n in (5, 10, 20, 50, 100, 200, 500, 1000)),
    *(Point("classes", 5, k, steps=max(20, 2000 // k)) for k in (10, 20, 47, 100, 200, 500, 1000)),
    *(
        Point("parameters", 5, 10, options={"widths": list(widths)})
        for widths in ((128, 64), (512, 256), (1024, 1024), (2048, 2048, 1024), (4096, 4096, 2048))
    ),
    *(
        Point("pixels", 5, 10, "cnn", shape=(3, side, side), steps=max(5, 1280 // side))
        for side in (28, 32, 64, 96, 128, 160, 224)
    ),
    Point("vit", 1, 1000, "vit", {}, (3, 224, 224), steps=1, at_once=4),
]
CHECKED = Point("checked", 40, 62, options={"widths": [256, 128]})
"""Not fitted."""


def measure(point: Point) -> dict[str, Any]:
    """In a process of its own."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    module = build_model(point.model, point.options, point.shape, point.classes)
    values = sum(tensor.numel() for tensor in module.parameters())
    work = flops(module, point.shape)
    before = peak_megabytes()
    state = state_of(module)
    states = [{name: tensor.clone() for name, tensor in state.items()} for _ in range(point.clients + 1)]
    classes = list(range(point.at_once or point.classes))
    probe(Stack(module, states[:1]), point.shape, classes[:1], steps=1)
    _, seconds = timed(
        lambda: probe(Stack(module, states), point.shape, classes, steps=point.steps, chunk=chunk_of(point))
    )
    peak = peak_megabytes() - before
    return {
        **asdict(point),
        "parameters": values,
        "flops_of_a_step": work,
        "seconds_of_a_step": seconds / point.steps * point.classes / len(classes),
        "peak_megabytes": peak,
        "models_megabytes": (point.clients + 1) * 4 * values / 2**20,
        "inputs_megabytes": (point.clients + 1) * len(classes) * 4 * prod(point.shape) / 2**20,
    }


def chunk_of(point: Point) -> int | None:
    """A bound on memory for large inputs, as docs/scaling.md recommends."""
    return 64 if prod(point.shape) > 20_000 else None


def flops(module: nn.Module, shape: tuple[int, ...]) -> int:
    """Of one input's step: forward, and as much again back to it."""
    with torch.no_grad(), FlopCounterMode(display=False) as counter:
        module(torch.zeros(1, *shape))
    return 2 * int(counter.get_total_flops())


def power(rows: list[dict[str, Any]], size: str) -> dict[str, float]:
    """seconds = a size^b, by least squares in logarithms."""
    x = np.log([row[size] for row in rows])
    y = np.log([row["seconds_of_a_step"] for row in rows])
    exponent, start = np.polyfit(x, y, 1)
    return {"a": float(np.exp(start)), "b": float(exponent)}


def terms(row: dict[str, Any]) -> list[float]:
    pairs = (row["clients"] + 1) * row["classes"]
    models = (row["clients"] + 1) * row["parameters"]
    return [pairs * row["flops_of_a_step"], pairs * prod(row["shape"]), models]


def cost_model(rows: list[dict[str, Any]]) -> dict[str, float]:
    """The rates, by least squares on relative errors, none of them negative."""
    table = np.array([terms(row) for row in rows])
    seconds = np.array([row["seconds_of_a_step"] for row in rows])
    found, _ = nnls(table / seconds[:, None], np.ones(len(rows)))
    return dict(
        zip(("seconds_per_flop", "seconds_per_value", "seconds_per_weight"), found.tolist(), strict=True)
    )


def predicted(model: dict[str, float], row: dict[str, Any]) -> float:
    return sum(size * rate for size, rate in zip(terms(row), model.values(), strict=True))


SIZE_OF = {"clients": "clients", "classes": "classes", "parameters": "parameters", "pixels": "side"}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="the small half of each curve")
    parser.add_argument("--point", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--out", type=Path, default=Path("results/bench/scaling.json"))
    given = parser.parse_args()
    points = [*POINTS, CHECKED]
    if given.point is not None:
        print(dump_json(measure(points[given.point])))
        return
    facts = machine()
    rows = []
    for number, point in enumerate(points):
        if given.quick and (point.clients > 50 or point.classes > 100 or max(point.shape) > 64):
            continue
        command = [sys.executable, __file__, "--point", str(number)]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        row = json.loads(done.stdout)
        row["side"] = row["shape"][-1]
        rows.append(row)
        print(
            f"{point.curve}: {point.clients} clients, {point.classes} classes, {row['parameters']:,} parameters,"
            f" {row['shape'][-1]} px: {1000 * row['seconds_of_a_step']:.1f} ms a step,"
            f" {row['peak_megabytes']:.0f} MB",
            flush=True,
        )
    fitted = [row for row in rows if row["curve"] not in ("checked", "vit")]
    model = cost_model(fitted)
    for row in rows:
        row["predicted_seconds"] = predicted(model, row)
    curves = {
        curve: power([row for row in rows if row["curve"] == curve], size) for curve, size in SIZE_OF.items()
    }
    write_text(
        given.out,
        dump_json({"machine": facts, "model": model, "powers": curves, "points": rows}, indent=1) + "\n",
    )
    checked = [row for row in rows if row["curve"] in ("checked", "vit")]
    for row in checked:
        print(
            f"{row['curve']}: measured / predicted {row['seconds_of_a_step'] / row['predicted_seconds']:.2f}"
        )


if __name__ == "__main__":
    main()
