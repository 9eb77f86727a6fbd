"""Measure the time of the strategy itself, as a share of a round in Flower's simulation, beside Flower's FedAvg.

    python benchmarks/flower_overhead.py [--rounds 8] [--clients 5 20 100]

Clients train the paper's 784-128-64-10 MLP for one epoch on 600 random samples. A simulation is the hardest case:
it has Flower's shortest rounds. A round of a deployment takes at least nine seconds for any work. CELM is measured as
printed in the paper, and with the preset `trust`, which clips updates and checks in every round who trains. It has a
warm-up of one round, which is not counted: the probe is the method itself. Times are medians over the other rounds, in
seconds. CELM saves state and record to disk every round; FedAvg has neither.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any, Literal

import torch
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg
from flwr.simulation import run_simulation
from torch import nn

from timing import timed

PRESETS: dict[str, Literal["trust"] | None] = {"celm": None, "trust": "trust"}
"""Name of a measured strategy to its preset."""
STAGES = ("deliver", "validate", "weigh", "merge", "record", "save")


def network() -> nn.Module:
    return nn.Sequential(
        nn.Flatten(), nn.Linear(784, 128), nn.ReLU(), nn.Linear(128, 64), nn.ReLU(), nn.Linear(64, 10)
    )


def train(message: Message, context: Context) -> Message:
    torch.set_num_threads(1)
    model = network()
    model.load_state_dict(message.content.array_records["arrays"].to_torch_state_dict())
    inputs, labels = torch.randn(600, 1, 28, 28), torch.randint(10, (600,))
    optimiser = torch.optim.SGD(model.parameters(), lr=0.1)
    for first in range(0, 600, 128):
        rows = slice(first, first + 128)
        optimiser.zero_grad()
        torch.autograd.backward(nn.functional.cross_entropy(model(inputs[rows]), labels[rows]))
        optimiser.step()
    content = RecordDict()
    content["arrays"], content["metrics"] = (
        ArrayRecord(model.state_dict()),
        MetricRecord({"num-examples": 600}),
    )
    return Message(content, reply_to=message)


def record_seconds(durations: list[float], function: Callable[..., Any]) -> Callable[..., Any]:
    def call(*arguments: Any) -> Any:
        result, seconds = timed(function, *arguments)
        durations.append(seconds)
        return result

    return call


def measure(strategy: str, clients: int, rounds: int) -> dict[str, Any]:
    """Run one simulation. `own` is the time in the strategy, `wall` the time of a whole round."""
    client, server = ClientApp(), ServerApp()
    client.train()(train)
    folder = Path(tempfile.mkdtemp())
    configure: list[float] = []
    aggregate: list[float] = []
    ends: list[float] = []

    def record_end(*_: Any) -> None:
        ends.append(time.perf_counter())

    @server.main()
    def main(grid: Grid, context: Context) -> None:
        from celm.flower import CelmStrategy

        nodes: dict[str, Any] = {
            "min_train_nodes": clients,
            "min_available_nodes": clients,
            "fraction_evaluate": 0.0,
        }
        server_strategy: Any
        if strategy == "fedavg":
            server_strategy = FedAvg(**nodes)
        else:
            preset, options = PRESETS[strategy], {"warmup": 1, "min_warmup": 1}
            server_strategy = CelmStrategy(
                network, (1, 28, 28), 10, preset=preset, rule_options=options, folder=folder, **nodes
            )
        server_strategy.configure_train = record_seconds(configure, server_strategy.configure_train)
        server_strategy.aggregate_train = record_seconds(aggregate, server_strategy.aggregate_train)
        server_strategy.start(
            grid, ArrayRecord(network().state_dict()), num_rounds=rounds, evaluate_fn=record_end
        )

    resources: Any = {"init_args": {"num_cpus": 2}, "client_resources": {"num_cpus": 1, "num_gpus": 0.0}}
    run_simulation(server, client, clients, backend_config=resources)
    walls = [after - before for before, after in pairwise(ends)][1:]
    strategy_seconds = [a + b for a, b in zip(configure, aggregate, strict=True)][1:]
    result: dict[str, Any] = {"wall": median(walls), "own": median(strategy_seconds)}
    result["share"] = median(spent / wall for spent, wall in zip(strategy_seconds, walls, strict=True))
    if strategy in PRESETS:
        lines = [json.loads(line) for line in (folder / "rounds.jsonl").read_text().splitlines()][1:]
        assert len(lines) == rounds - 1
        times = [json.loads(line) for line in (folder / "times.jsonl").read_text().splitlines()][1:]
        result["parts"] = {stage: median(t[stage] for t in times) for stage in STAGES if stage != "save"}
        result["parts"]["save"] = max(0.0, result["own"] - sum(result["parts"].values()))
    shutil.rmtree(folder)
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--clients", type=int, nargs="+", default=[5, 20, 100])
    parser.add_argument("--out", type=Path, default=Path("results/bench/flower_overhead.json"))
    parser.add_argument("--only", nargs=2, metavar=("STRATEGY", "CLIENTS"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.only:
        logging.getLogger("flwr").setLevel(logging.ERROR)
        torch.set_num_threads(1)
        print("FOUND " + json.dumps(measure(options.only[0], int(options.only[1]), options.rounds)))
        return
    rows: dict[str, Any] = {"load": os.getloadavg(), "rounds": options.rounds}
    for clients in options.clients:
        for strategy in ("fedavg", *PRESETS):
            # One process for each, because Ray must start again.
            command = [sys.executable, __file__, "--rounds", options.rounds, "--only", strategy, clients]
            completed = subprocess.run(list(map(str, command)), capture_output=True, text=True, check=True)
            line = next(line for line in completed.stdout.splitlines() if line.startswith("FOUND "))
            rows[f"{strategy}-{clients}"] = result = json.loads(line.removeprefix("FOUND "))
            print(
                f"{strategy:7} {clients:4} clients: {result['own']:.3f} s of {result['wall']:.3f} s",
                flush=True,
            )
            options.out.write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
