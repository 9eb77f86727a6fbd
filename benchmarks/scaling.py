"""Measure how time and memory of a probe grow with clients, classes, the size of the model and of its inputs.

    python benchmarks/scaling.py [--quick]

Each point is measured in its own process with one thread. It runs some steps of the library's default probe on models
with random weights: time and memory do not depend on values. The number of steps is large enough that fixed costs, such
as stacking the weights, are small, as in a probe of 200 steps. Memory is the peak resident size minus the size before
the models were created. Curves are fitted by a power law, seconds = a size^b, in logarithms.

Cost model, fitted to all points except those that check it:

    seconds = L (N + 1) (K (f / r + p / s) + w / b)

f is the number of floating-point operations of a step for one input (forward, and back to the inputs: 4 for each
product). p is the number of values of an input, w that of the model. The rates r, s and b are fitted by least squares
on relative errors. `docs/scaling.md` explains the consequences.
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
from celm.core.model_stack import ModelStack
from celm.core.probe import probe
from celm.models import build_model
from celm.models.state_dict import get_state
from timing import describe_machine, peak_megabytes, timed


@dataclass(frozen=True)
class Point:
    """The sizes of one measurement: N clients and the global model, K classes."""

    curve: str
    clients: int
    classes: int
    model: str = "mlp"
    options: dict[str, Any] = field(default_factory=dict)
    shape: tuple[int, ...] = (1, 28, 28)
    steps: int = 40
    at_once: int | None = None
    """Number of classes to probe if all would take too long; seconds are then extrapolated."""


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
"""Point that checks the cost model, which is not fitted to it."""


def measure(point: Point) -> dict[str, Any]:
    """Measure a point. Each point needs its own process."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    module = build_model(point.model, point.options, point.shape, point.classes)
    values = sum(tensor.numel() for tensor in module.parameters())
    work = count_flops(module, point.shape)
    before = peak_megabytes()
    state = get_state(module)
    states = [{name: tensor.clone() for name, tensor in state.items()} for _ in range(point.clients + 1)]
    classes = list(range(point.at_once or point.classes))
    probe(ModelStack(module, states[:1]), point.shape, classes[:1], steps=1)
    _, seconds = timed(
        lambda: probe(
            ModelStack(module, states), point.shape, classes, steps=point.steps, chunk=choose_chunk(point)
        )
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


def choose_chunk(point: Point) -> int | None:
    """Return the chunk that bounds memory for large inputs, as docs/scaling.md recommends."""
    return 64 if prod(point.shape) > 20_000 else None


def count_flops(module: nn.Module, shape: tuple[int, ...]) -> int:
    """Return the operations of a step for one input: forward, and the same number backward."""
    with torch.no_grad(), FlopCounterMode(display=False) as counter:
        module(torch.zeros(1, *shape))
    return 2 * int(counter.get_total_flops())


def fit_power_law(rows: list[dict[str, Any]], size: str) -> dict[str, float]:
    """Fit seconds = a size^b by least squares in logarithms."""
    x = np.log([row[size] for row in rows])
    y = np.log([row["seconds_of_a_step"] for row in rows])
    exponent, intercept = np.polyfit(x, y, 1)
    return {"a": float(np.exp(intercept)), "b": float(exponent)}


def cost_terms(row: dict[str, Any]) -> list[float]:
    pairs = (row["clients"] + 1) * row["classes"]
    models = (row["clients"] + 1) * row["parameters"]
    return [pairs * row["flops_of_a_step"], pairs * prod(row["shape"]), models]


def fit_cost_model(rows: list[dict[str, Any]]) -> dict[str, float]:
    """Fit the rates by non-negative least squares on relative errors."""
    table = np.array([cost_terms(row) for row in rows])
    seconds = np.array([row["seconds_of_a_step"] for row in rows])
    rates, _ = nnls(table / seconds[:, None], np.ones(len(rows)))
    return dict(
        zip(("seconds_per_flop", "seconds_per_value", "seconds_per_weight"), rates.tolist(), strict=True)
    )


def predict_seconds(model: dict[str, float], row: dict[str, Any]) -> float:
    return sum(size * rate for size, rate in zip(cost_terms(row), model.values(), strict=True))


SIZE_OF = {"clients": "clients", "classes": "classes", "parameters": "parameters", "pixels": "side"}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="only the small sizes of each curve")
    parser.add_argument("--point", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--out", type=Path, default=Path("results/bench/scaling.json"))
    options = parser.parse_args()
    points = [*POINTS, CHECKED]
    if options.point is not None:
        print(dump_json(measure(points[options.point])))
        return
    machine_info = describe_machine()
    rows = []
    for number, point in enumerate(points):
        if options.quick and (point.clients > 50 or point.classes > 100 or max(point.shape) > 64):
            continue
        command = [sys.executable, __file__, "--point", str(number)]
        completed = subprocess.run(command, capture_output=True, text=True, check=True)
        row = json.loads(completed.stdout)
        row["side"] = row["shape"][-1]
        rows.append(row)
        print(
            f"{point.curve}: {point.clients} clients, {point.classes} classes, {row['parameters']:,} parameters,"
            f" {row['shape'][-1]} px: {1000 * row['seconds_of_a_step']:.1f} ms a step,"
            f" {row['peak_megabytes']:.0f} MB",
            flush=True,
        )
    fitted_rows = [row for row in rows if row["curve"] not in ("checked", "vit")]
    model = fit_cost_model(fitted_rows)
    for row in rows:
        row["predicted_seconds"] = predict_seconds(model, row)
    curves = {
        curve: fit_power_law([row for row in rows if row["curve"] == curve], size)
        for curve, size in SIZE_OF.items()
    }
    write_text(
        options.out,
        dump_json({"machine": machine_info, "model": model, "powers": curves, "points": rows}, indent=1)
        + "\n",
    )
    checked_rows = [row for row in rows if row["curve"] in ("checked", "vit")]
    for row in checked_rows:
        print(
            f"{row['curve']}: measured / predicted {row['seconds_of_a_step'] / row['predicted_seconds']:.2f}"
        )


if __name__ == "__main__":
    main()
