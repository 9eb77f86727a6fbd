"""Flower in small: a grid that calls clients in this process, with Flower's own messages and arrays as bytes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any
from uuid import uuid4

import pytest

pytest.importorskip("flwr", reason="Flower is not installed: pip install 'celm[flower]'")

import torch
from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.proto.node_pb2 import NodeInfo
from flwr.serverapp import Grid
from flwr.supercore.task_identity import TaskIdentity
from torch import nn

Client = Callable[[Message], "Message | list[Message] | None"]
"""What a client makes of a message: a reply, several, or none in time."""


class SmallGrid(Grid):
    """Nodes by name; `online` says which of them are connected now."""

    def __init__(self, clients: Mapping[str, Client]) -> None:
        # Flower sets this where it starts a ServerApp; messages cannot be made without.
        TaskIdentity.run_id, TaskIdentity.task_id, TaskIdentity.node_id = 1, 1, 1
        self.clients = dict(clients)
        self.ids = {name: 1000 + i for i, name in enumerate(clients)}
        self.online = set(clients)
        self.registered = {name: name for name in clients}
        """What nodes are called in Flower; their keys are others in any case."""
        self.sent: list[Message] = []

    def get_nodes(self) -> Iterable[NodeInfo]:
        return [
            NodeInfo(node_id=self.ids[name], name=self.registered[name], public_key=name.encode())
            for name in self.clients
            if name in self.online
        ]

    def get_node_ids(self) -> Iterable[int]:
        return [node.node_id for node in self.get_nodes()]

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        for message in messages:
            message.metadata.__dict__["_message_id"] = str(uuid4())
        return [message.metadata.message_id for message in messages]

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> Iterable[Message]:
        sent = list(messages)
        self.push_messages(sent)
        self.sent += sent
        names = {number: name for name, number in self.ids.items()}
        replies: list[Message] = []
        for message in sent:
            made = self.clients[names[message.metadata.dst_node_id]](message)
            replies += made if isinstance(made, list) else [] if made is None else [made]
        return replies

    def set_run(self, run: Any) -> None: ...

    @property
    def run(self) -> Any: ...

    def create_message(self, *_: Any, **__: Any) -> Message:
        raise AssertionError("no strategy asks for this")

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        raise AssertionError("no strategy asks for this")


def network() -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return nn.Sequential(nn.Flatten(), nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 3))


def initial() -> ArrayRecord:
    return ArrayRecord(network().state_dict())


def reply(message: Message, arrays: ArrayRecord, **metrics: Any) -> Message:
    content: dict[str, Any] = {"arrays": arrays}
    if metrics:
        content["metrics"] = MetricRecord({name.replace("_", "-"): value for name, value in metrics.items()})
    return Message(RecordDict(content), reply_to=message)


def arrays_of(message: Message) -> dict[str, torch.Tensor]:
    return dict(message.content.array_records["arrays"].to_torch_state_dict())


def learner(shift: float, **metrics: Any) -> Client:
    """A client that moves everything it is sent by a constant."""

    def train(message: Message) -> Message:
        if message.metadata.message_type == "evaluate":
            return Message(
                RecordDict({"metrics": MetricRecord({"loss": 1.0, "num-examples": 1})}), reply_to=message
            )
        moved = {name: tensor + shift for name, tensor in arrays_of(message).items()}
        return reply(message, ArrayRecord(moved), **metrics)

    return train


def config_of(message: Message) -> ConfigRecord:
    return message.content.config_records["config"]
