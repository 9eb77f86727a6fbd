"""An ordinary Flower client: it receives arrays, trains and returns arrays. It does not depend on CELM."""

from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from quickstart.task import accuracy, load_partition, network, test_set, train

app = ClientApp()


@app.train()
def fit(message: Message, context: Context) -> Message:
    model = network()
    model.load_state_dict(message.content["arrays"].to_torch_state_dict())
    config = message.content["config"]
    partition = int(context.node_config["partition-id"])
    inputs, labels = load_partition(partition, int(context.node_config["num-partitions"]))
    train(model, inputs, labels, config["lr"], seed=1000 * config["server-round"] + partition)
    metrics = MetricRecord({"num-examples": len(labels)})
    return Message(
        RecordDict({"arrays": ArrayRecord(model.state_dict()), "metrics": metrics}), reply_to=message
    )


@app.evaluate()
def evaluate(message: Message, context: Context) -> Message:
    model = network()
    model.load_state_dict(message.content["arrays"].to_torch_state_dict())
    inputs, labels = test_set()
    metrics = MetricRecord({"num-examples": len(labels), "accuracy": accuracy(model, inputs, labels)})
    return Message(RecordDict({"metrics": metrics}), reply_to=message)
