"""Flower's simulation on Ray: its FedAvg, and clients that train by the plain loop on tensors in memory.

A client takes one core and one thread, so that as many train at a time as there are cores. Its process reads the data
once, in the warm-up round. What that round takes more than another, Ray's start included, is reported apart.
"""

from __future__ import annotations

import logging
import os
import sys
import time
import traceback
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

import flwr
from dealt import Dealt, given, read
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg
from flwr.simulation import run_simulation
from plain import fit, shuffled

DATA, SETTINGS = (Path(name).resolve() for name in sys.argv[1:3])


def train(message: Message, context: Context) -> Message:
    dealt = read(DATA, SETTINGS)
    model = dealt.model()
    model.load_state_dict(message.content["arrays"].to_torch_state_dict())
    inputs, labels = dealt.clients[int(context.node_config["partition-id"])]
    fit(model, shuffled(inputs, labels, dealt.settings["batch"]), dealt.settings["lr"])
    metrics = MetricRecord({"num-examples": len(labels)})
    return Message(
        RecordDict({"arrays": ArrayRecord(model.state_dict()), "metrics": metrics}), reply_to=message
    )


def simulate(dealt: Dealt) -> None:
    ends: list[float] = []
    model = dealt.model()
    client, server = ClientApp(), ServerApp()
    client.train()(train)

    def note(number: int, arrays: ArrayRecord) -> None:
        ends.append(time.perf_counter())
        if number == dealt.all_rounds:
            model.load_state_dict(arrays.to_torch_state_dict())

    @server.main()
    def main(grid: Grid, context: Context) -> None:
        count = len(dealt.clients)
        strategy = FedAvg(fraction_evaluate=0.0, min_train_nodes=count, min_available_nodes=count)
        strategy.start(grid, ArrayRecord(model.state_dict()), num_rounds=dealt.all_rounds, evaluate_fn=note)

    cores = dealt.settings["processes"]
    # Ray's processes find the modules beside this file by the path.
    os.environ["PYTHONPATH"] = os.pathsep.join((str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")))
    resources: dict[str, Any] = {
        "init_args": {"num_cpus": cores},
        "client_resources": {"num_cpus": 1, "num_gpus": 0.0},
    }
    start = time.perf_counter()
    run_simulation(server, client, len(dealt.clients), backend_config=resources)
    seconds = [after - before for before, after in pairwise(ends)]
    start_up = ends[1] - start - median(seconds[1:])
    dealt.report(seconds, model, start_up=start_up, version=flwr.__version__)


if __name__ == "__main__":
    logging.getLogger("flwr").setLevel(logging.ERROR)
    try:
        simulate(given())
    except RuntimeError:
        traceback.print_exc()
        os._exit(1)  # threads of the simulation would wait for ever
