"""What the strategy itself costs, as a share of a round in Flower's simulation, beside Flower's FedAvg.

    python benchmarks/flower_overhead.py [--rounds 8] [--clients 5 20 100]

Clients train the paper's 784-128-64-10 MLP for one epoch on 600 random samples. A simulation is the hardest case: its
rounds are as short as Flower has them (one of a deployment takes nine seconds and more, whatever the work). CELM warms
up for one round, which is left out: the probe is the method itself. Medians over the other rounds, in seconds; state
and record are saved to disk every round. FedAvg has neither.
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
from typing import Any

import torch
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg
from flwr.simulation import run_simulation
from torch import nn

from timing import timed

PARTS = ("deliver", "validate", "weigh", "merge", "record", "save")


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


def noted(kept: list[float], function: Callable[..., Any]) -> Callable[..., Any]:
    def call(*arguments: Any) -> Any:
        result, seconds = timed(function, *arguments)
        kept.append(seconds)
        return result

    return call


def measure(strategy: str, clients: int, rounds: int) -> dict[str, Any]:
    """One simulation; `own` is the time spent in the strategy, `wall` that of a whole round."""
    client, server = ClientApp(), ServerApp()
    client.train()(train)
    folder = Path(tempfile.mkdtemp())
    configure: list[float] = []
    aggregate: list[float] = []
    ends: list[float] = []

    def note(*_: Any) -> None:
        ends.append(time.perf_counter())

    @server.main()
    def main(grid: Grid, context: Context) -> None:
        from celm.flower import CelmStrategy

        nodes: dict[str, Any] = {
            "min_train_nodes": clients,
            "min_available_nodes": clients,
            "fraction_evaluate": 0.0,
        }
        chosen: Any
        if strategy == "celm":
            options = {"warmup": 1}
            chosen = CelmStrategy(network, (1, 28, 28), 10, rule_options=options, folder=folder, **nodes)
        else:
            chosen = FedAvg(**nodes)
        chosen.configure_train = noted(configure, chosen.configure_train)
        chosen.aggregate_train = noted(aggregate, chosen.aggregate_train)
        chosen.start(grid, ArrayRecord(network().state_dict()), num_rounds=rounds, evaluate_fn=note)

    resources: Any = {"init_args": {"num_cpus": 2}, "client_resources": {"num_cpus": 1, "num_gpus": 0.0}}
    run_simulation(server, client, clients, backend_config=resources)
    walls = [after - before for before, after in pairwise(ends)][1:]
    own = [a + b for a, b in zip(configure, aggregate, strict=True)][1:]
    found: dict[str, Any] = {"wall": median(walls), "own": median(own)}
    found["share"] = median(mine / wall for mine, wall in zip(own, walls, strict=True))
    if strategy == "celm":
        lines = [json.loads(line) for line in (folder / "rounds.jsonl").read_text().splitlines()][1:]
        assert len(lines) == rounds - 1
        times = [json.loads(line) for line in (folder / "times.jsonl").read_text().splitlines()][1:]
        found["parts"] = {part: median(t[part] for t in times) for part in PARTS if part != "save"}
        found["parts"]["save"] = max(0.0, found["own"] - sum(found["parts"].values()))
    shutil.rmtree(folder)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--clients", type=int, nargs="+", default=[5, 20, 100])
    parser.add_argument("--out", type=Path, default=Path("results/bench/flower_overhead.json"))
    parser.add_argument("--only", nargs=2, metavar=("STRATEGY", "CLIENTS"), help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.only:
        logging.getLogger("flwr").setLevel(logging.ERROR)
        torch.set_num_threads(1)
        print("FOUND " + json.dumps(measure(given.only[0], int(given.only[1]), given.rounds)))
        return
    rows: dict[str, Any] = {"load": os.getloadavg(), "rounds": given.rounds}
    for clients in given.clients:
        for strategy in ("fedavg", "celm"):
            # A process each: Ray starts anew.
            command = [sys.executable, __file__, "--rounds", given.rounds, "--only", strategy, clients]
            done = subprocess.run(list(map(str, command)), capture_output=True, text=True, check=True)
            line = next(line for line in done.stdout.splitlines() if line.startswith("FOUND "))
            rows[f"{strategy}-{clients}"] = found = json.loads(line.removeprefix("FOUND "))
            print(
                f"{strategy:7} {clients:4} clients: {found['own']:.3f} s of {found['wall']:.3f} s", flush=True
            )
            given.out.write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
