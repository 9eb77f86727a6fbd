"""An ordinary Flower server with CELM's strategy instead of FedAvg."""

from logging import INFO

import torch
from flwr.app import ArrayRecord, ConfigRecord, Context, MetricRecord
from flwr.common import log
from flwr.serverapp import Grid, ServerApp

from celm.flower import CelmStrategy
from quickstart.task import SEED, accuracy, network, test_set

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    config = context.run_config
    rounds, state = int(config["rounds"]), config["state"] or None
    nodes = {"min_train_nodes": int(config["nodes"]), "min_available_nodes": int(config["nodes"])}
    torch.manual_seed(SEED)
    model = network()

    def evaluate(number: int, arrays: ArrayRecord) -> MetricRecord:
        model.load_state_dict(arrays.to_torch_state_dict())
        return MetricRecord({"accuracy": accuracy(model, *test_set())})

    strategy = CelmStrategy(model, (1, 8, 8), classes=10, folder=state, fraction_evaluate=0.0, **nodes)
    strategy.start(
        grid,
        ArrayRecord(model.state_dict()),
        num_rounds=rounds,
        train_config=ConfigRecord({"lr": config["lr"]}),
        evaluate_fn=evaluate,
    )
    log(INFO, "Who contributed what:\n%s", strategy.table())
