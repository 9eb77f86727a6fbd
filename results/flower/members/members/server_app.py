"""An ordinary Flower server with CELM's strategy and its default settings, and alerts if a webhook is given."""

from flwr.app import ArrayRecord, Context, MetricRecord
from flwr.serverapp import Grid, ServerApp

from celm.flower import CelmStrategy, Webhook
from members.task import accuracy, network, test_data

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    config = context.run_config
    model = network(int(config["seed"]))

    def evaluate(number: int, arrays: ArrayRecord) -> MetricRecord:
        model.load_state_dict(arrays.to_torch_state_dict())
        return MetricRecord({"accuracy": accuracy(model, *test_data())})

    alerts = [Webhook(str(config["webhook"]))] if config["webhook"] else []
    strategy = CelmStrategy(
        model,
        (1, 28, 28),
        10,
        folder=config["state"],
        fraction_evaluate=0.0,
        alerts=alerts,
        refresh_report=bool(alerts),
    )
    arrays = ArrayRecord(model.state_dict())
    strategy.start(grid, arrays, num_rounds=int(config["rounds"]), evaluate_fn=evaluate)
