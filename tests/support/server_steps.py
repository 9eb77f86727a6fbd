"""The server step on models of one weight and one bias, made by hand."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import nn

from celm.federation.server import (
    Server,
    ServerState,
    ServerStep,
    initial_server_state,
    make_messages,
    server_step,
)
from celm.models.state_dict import StateDict
from celm.rules.fedavg import FedAvg
from celm.rules.messages import ClientUpdate
from celm.rules.rule import ServerContext

HEAD = ("weight", "bias")


def model(weight: float, bias: float = 0.0) -> StateDict:
    return {"weight": torch.tensor([[weight]]), "bias": torch.tensor([bias])}


def make_server(**changes: Any) -> tuple[Server, ServerState]:
    context = ServerContext(("a", "b"), 2, (1,), 10, 0, nn.Linear(1, 1), HEAD)
    server = replace(Server(FedAvg(), context), **changes)
    return server, initial_server_state(server, model(1.0), ("a", "b"))


def step(server: Server, state: ServerState, **updates: ClientUpdate) -> ServerStep:
    return server_step(server, state, make_messages(server, state, ("a", "b")), updates)
