"""Flower's own HttpGrid in front of a SuperLink in this process: messages travel as the bytes that nodes send."""

from __future__ import annotations

from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("flwr.superlink.grid.http_grid", reason="this Flower has no HttpGrid")

from flwr.app import Message, MetricRecord
from flwr.common.serde import message_to_proto
from flwr.proto.message_pb2 import ConfirmMessageReceivedResponse, PullObjectResponse, PushObjectResponse
from flwr.proto.node_pb2 import NodeInfo
from flwr.proto.recorddict_pb2 import MetricRecord as ProtoMetricRecord
from flwr.proto.recorddict_pb2 import MetricRecordValue
from flwr.proto.runtime_pb2 import GetNodesResponse, PullAppMessagesResponse, PushAppMessagesResponse
from flwr.supercore.inflatable.inflatable_object import (
    add_header_to_object_body,
    get_all_nested_objects,
    get_object_tree,
    iterate_object_tree,
)
from flwr.supercore.inflatable.inflatable_utils import inflate_object_from_contents
from flwr.supercore.task_identity import TaskIdentity
from flwr.superlink.grid.http_grid import HttpGrid

from support.small_grid import Client


class SuperLink:
    """The part of the Runtime API that a grid calls; a client replies when its reply is asked for."""

    def __init__(self, clients: Mapping[str, Client]) -> None:
        self.clients = dict(clients)
        self.ids = {name: 1000 + i for i, name in enumerate(clients)}
        self.refused: set[str] = set()
        """Clients to which no message can be sent."""
        self.connected = True
        self.objects: dict[str, bytes] = {}
        self.messages: dict[str, Message] = {}
        self.pulled: list[str] = []
        """The ids asked for, in order."""

    def name_of(self, node_id: int) -> str:
        return next(name for name, number in self.ids.items() if number == node_id)

    def GetNodes(self, request: Any) -> GetNodesResponse:  # noqa: N802
        if not self.connected:
            raise ConnectionError("the SuperLink is gone")
        nodes = [NodeInfo(node_id=number, name=name) for name, number in self.ids.items()]
        return GetNodesResponse(nodes=nodes)

    def PushMessages(self, request: Any) -> PushAppMessagesResponse:  # noqa: N802
        names = [self.name_of(proto.metadata.dst_node_id) for proto in request.messages_list]
        message_ids = [
            "" if name in self.refused else proto.metadata.message_id
            for name, proto in zip(names, request.messages_list, strict=True)
        ]
        wanted = [
            part.object_id for tree in request.message_object_trees for part in iterate_object_tree(tree)
        ]
        return PushAppMessagesResponse(message_ids=message_ids, objects_to_push=wanted, session_id="s")

    def PushObject(self, request: Any) -> PushObjectResponse:  # noqa: N802
        self.objects[request.object_id] = request.object_content
        return PushObjectResponse(stored=True)

    def PullMessages(self, request: Any) -> PullAppMessagesResponse:  # noqa: N802
        protos, trees = [], []
        for message_id in request.message_ids:
            self.pulled.append(message_id)
            message: Any = inflate_object_from_contents(message_id, self.objects, keep_object_contents=True)
            message.metadata.__dict__["_message_id"] = message_id
            made = self.clients[self.name_of(message.metadata.dst_node_id)](message)
            for reply in made if isinstance(made, list) else [] if made is None else [made]:
                reply.metadata.__dict__["_message_id"] = reply.object_id
                self.objects |= {key: part.deflate() for key, part in get_all_nested_objects(reply).items()}
                protos.append(message_to_proto(reply))
                trees.append(get_object_tree(reply))
        return PullAppMessagesResponse(messages_list=protos, message_object_trees=trees)

    def PullObject(self, request: Any) -> PullObjectResponse:  # noqa: N802
        if not self.connected:
            raise ConnectionError("the SuperLink is gone")
        content = self.objects[request.object_id]
        return PullObjectResponse(object_found=True, object_available=True, object_content=content)

    def ConfirmMessageReceived(self, request: Any) -> ConfirmMessageReceivedResponse:  # noqa: N802
        return ConfirmMessageReceivedResponse()


def wire_grid(clients: Mapping[str, Client]) -> tuple[HttpGrid, SuperLink]:
    TaskIdentity.run_id, TaskIdentity.task_id, TaskIdentity.node_id = 1, 1, 1
    link, grid = SuperLink(clients), HttpGrid(token="t")
    grid._client, grid._run = link, SimpleNamespace(run_id=1)  # type: ignore[assignment]
    grid.pull_interval = 0.01  # type: ignore[attr-defined]
    return grid, link


class UnsetMetrics(MetricRecord):
    """Metrics whose one value is not set: valid protobuf, which Flower cannot read."""

    def deflate(self) -> bytes:
        items = [ProtoMetricRecord.Item(key="loss", value=MetricRecordValue())]
        return add_header_to_object_body(ProtoMetricRecord(items=items).SerializeToString(), self)


UnsetMetrics.__qualname__ = "MetricRecord"  # the type that the bytes declare
