"""An ordinary Flower client. It may misbehave: as its node is configured; partition 2 also as the run is."""

import torch
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from torch import Tensor

from members.task import member_data, network, train

app = ClientApp()
MISBEHAVING = 2
FIRST_IDLE_ROUND = 6


def _load(message: Message, seed: int) -> torch.nn.Module:
    torch.set_num_threads(1)
    model = network(seed)
    model.load_state_dict(message.content["arrays"].to_torch_state_dict())
    return model


@app.train()
def fit(message: Message, context: Context) -> Message:
    config = context.run_config
    seed, partition = int(config["seed"]), int(context.node_config["partition-id"])
    behaviour = config["behaviour"] if partition == MISBEHAVING else "honest"
    behaviour = str(context.node_config.get("behaviour", behaviour))
    number = int(message.content["config"]["server-round"])
    model = _load(message, seed)
    received = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    inputs, labels = member_data(partition, seed)
    train(model, inputs, labels, seed=100_000 * seed + 1000 * number + partition)
    state = misbehave(behaviour, number, received, model.state_dict())
    content = RecordDict(
        {"arrays": ArrayRecord(state), "metrics": MetricRecord({"num-examples": len(labels)})}
    )
    return Message(content, reply_to=message)


def misbehave(
    behaviour: str, number: int, received: dict[str, Tensor], trained: dict[str, Tensor]
) -> dict[str, Tensor]:
    """Return what the member sends in place of the model that it trained."""
    first, *_ = trained
    *_, head_weight, head_bias = trained
    match behaviour:
        case "nan":
            return {**trained, first: torch.full_like(trained[first], torch.nan)}
        case "wrong shape":
            return {**trained, first: torch.zeros(3, 3)}
        case "unchanged":
            return received
        case "head x 10":
            return {**trained, head_weight: 10 * trained[head_weight], head_bias: 10 * trained[head_bias]}
        case "idle" if number >= FIRST_IDLE_ROUND:
            return {name: _slightly_changed(tensor, number) for name, tensor in received.items()}
    return trained


def _slightly_changed(tensor: Tensor, seed: int) -> Tensor:
    """Return a copy that is not equal: with noise of a thousandth of the values' spread."""
    if not tensor.is_floating_point():
        return tensor
    generator = torch.Generator().manual_seed(seed)
    return tensor + 1e-3 * tensor.std(correction=0) * torch.randn(tensor.shape, generator=generator)
