"""A Flower client without PyTorch."""

import sys

import numpy as np
from flwr.app import Array, ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from many_nodes.task import member_data, peak_megabytes, train

app = ClientApp()


@app.train()
def fit(message: Message, context: Context) -> Message:
    seed, partition = int(context.run_config["seed"]), int(context.node_config["partition-id"])
    number = int(message.content["config"]["server-round"])
    received = message.content["arrays"]
    arrays = [np.array(array.numpy()) for array in received.values()]
    inputs, labels = member_data(partition, seed)
    train(arrays, inputs, labels, [seed, partition, number])
    if "torch" in sys.modules:
        raise RuntimeError("a client imported PyTorch")
    trained = {name: Array(array) for name, array in zip(received, arrays, strict=True)}
    metrics = MetricRecord({"num-examples": len(labels), "peak-megabytes": peak_megabytes()})
    return Message(RecordDict({"arrays": ArrayRecord(trained), "metrics": metrics}), reply_to=message)
