"""Flower's simulation on Ray: its FedAvg, and clients that train by the plain loop on tensors in memory.

A client uses one core and one thread, so all cores train at the same time. Its process reads the data once, in the
warm-up round. The additional time of that round, with the start of Ray, is reported separately.
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
from dealt import RivalData, read_arguments, read_data
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg
from flwr.simulation import run_simulation
from plain import shuffled_batches, train_epoch

DATA, SETTINGS = (Path(name).resolve() for name in sys.argv[1:3])


def train(message: Message, context: Context) -> Message:
    data = read_data(DATA, SETTINGS)
    model = data.model()
    model.load_state_dict(message.content["arrays"].to_torch_state_dict())
    inputs, labels = data.clients[int(context.node_config["partition-id"])]
    train_epoch(model, shuffled_batches(inputs, labels, data.settings["batch"]), data.settings["lr"])
    metrics = MetricRecord({"num-examples": len(labels)})
    return Message(
        RecordDict({"arrays": ArrayRecord(model.state_dict()), "metrics": metrics}), reply_to=message
    )


def simulate(data: RivalData) -> None:
    ends: list[float] = []
    model = data.model()
    client, server = ClientApp(), ServerApp()
    client.train()(train)

    def record_end(number: int, arrays: ArrayRecord) -> None:
        ends.append(time.perf_counter())
        if number == data.all_rounds:
            model.load_state_dict(arrays.to_torch_state_dict())

    @server.main()
    def main(grid: Grid, context: Context) -> None:
        count = len(data.clients)
        strategy = FedAvg(fraction_evaluate=0.0, min_train_nodes=count, min_available_nodes=count)
        strategy.start(
            grid, ArrayRecord(model.state_dict()), num_rounds=data.all_rounds, evaluate_fn=record_end
        )

    cores = data.settings["processes"]
    # Ray's processes import the modules beside this file through this path.
    os.environ["PYTHONPATH"] = os.pathsep.join((str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")))
    resources: dict[str, Any] = {
        "init_args": {"num_cpus": cores},
        "client_resources": {"num_cpus": 1, "num_gpus": 0.0},
    }
    start = time.perf_counter()
    run_simulation(server, client, len(data.clients), backend_config=resources)
    seconds = [after - before for before, after in pairwise(ends)]
    start_up = ends[1] - start - median(seconds[1:])
    data.report(seconds, model, start_up=start_up, version=flwr.__version__)


if __name__ == "__main__":
    logging.getLogger("flwr").setLevel(logging.ERROR)
    try:
        simulate(read_arguments())
    except RuntimeError:
        traceback.print_exc()
        os._exit(1)  # threads of the simulation would wait forever
