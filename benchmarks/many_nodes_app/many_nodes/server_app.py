"""A Flower server that measures its strategy: CELM with its default settings, or Flower's FedAvg."""

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from flwr.app import ArrayRecord, Context, MetricRecord
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg
from torch import nn

from celm.flower import CelmStrategy
from many_nodes.task import CLASSES, draw_samples, peak_megabytes

app = ServerApp()


def network(seed: int) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Sequential(
        nn.Flatten(), nn.Linear(784, 128), nn.ReLU(), nn.Linear(128, 64), nn.ReLU(), nn.Linear(64, CLASSES)
    )


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Run the federation. Each round, and the state before the first one, adds a line to the file `log`."""
    config = context.run_config
    torch.set_num_threads(1)
    model = network(int(config["seed"]))
    inputs, labels = map(
        torch.from_numpy, draw_samples(list(range(CLASSES)), 2000, [int(config["seed"]), 10**6])
    )
    spent: dict[str, dict[str, float]] = {}

    def measured(stage: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any) -> Any:
            wall, cpu = time.perf_counter(), time.process_time()
            result = function(*arguments)
            spent[stage] = {"wall": time.perf_counter() - wall, "cpu": time.process_time() - cpu}
            return result

        return call

    def evaluate(number: int, arrays: ArrayRecord) -> MetricRecord:
        model.load_state_dict(arrays.to_torch_state_dict())
        with torch.no_grad():
            accuracy = (model(inputs).argmax(dim=1) == labels).float().mean().item()
        line = {
            "round": number,
            "time": time.time(),
            "accuracy": accuracy,
            "peak_megabytes": peak_megabytes(),
            **spent,
        }
        with Path(str(config["log"])).open("a", encoding="utf-8") as log:
            log.write(json.dumps(line) + "\n")
        return MetricRecord({"accuracy": accuracy})

    while len(list(grid.get_node_ids())) < int(config["nodes"]):
        time.sleep(2)
    strategy: Any
    if config["strategy"] == "fedavg":
        strategy = FedAvg(fraction_evaluate=0.0)
    else:
        strategy = CelmStrategy(model, (1, 28, 28), CLASSES, folder=config["state"], fraction_evaluate=0.0)
    strategy.configure_train = measured("configure", strategy.configure_train)
    strategy.aggregate_train = measured("aggregate", strategy.aggregate_train)
    arrays = ArrayRecord(model.state_dict())
    rounds, timeout = int(config["rounds"]), float(config["timeout"])
    strategy.start(grid, arrays, num_rounds=rounds, timeout=timeout, evaluate_fn=evaluate)
