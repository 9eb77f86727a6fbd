"""A federation in which one member is idle from round 6 on and another sends NaN, with hand-made replies."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from flwr.app import ArrayRecord, Message, MetricRecord, RecordDict

from celm.flower import CelmStrategy, ContributionResult
from support.small_grid import Client, SmallGrid, arrays_of, initial, network, reply

IDLE_FROM = 6
ROUNDS = 8


def member(classes: tuple[int, ...], idle_from: int | None = None, nan: bool = False) -> Client:
    """Return a client that trains on inputs of its classes; from round `idle_from` on it sends noise."""

    def answer(message: Message) -> Message:
        if message.metadata.message_type == "evaluate":
            metrics = MetricRecord({"accuracy": 0.75, "num-examples": 10})
            return Message(RecordDict({"metrics": metrics}), reply_to=message)
        round_number = int(message.content["config"]["server-round"])
        state = arrays_of(message)
        if nan:
            state = {name: torch.full_like(tensor, float("nan")) for name, tensor in state.items()}
        elif idle_from is not None and round_number >= idle_from:
            generator = torch.Generator().manual_seed(round_number)
            state = {
                name: tensor + 1e-6 * torch.randn(tensor.shape, generator=generator)
                for name, tensor in state.items()
            }
        else:
            state = _train(state, classes, round_number)
        return reply(message, ArrayRecord(state), num_examples=30)

    return answer


def _train(state: dict[str, torch.Tensor], classes: tuple[int, ...], seed: int) -> dict[str, torch.Tensor]:
    model = network()
    model.load_state_dict(state)
    generator = torch.Generator().manual_seed(1000 * classes[0] + seed)
    labels = torch.tensor([classes[i % len(classes)] for i in range(30)])
    inputs = 0.3 * torch.randn(30, 6, generator=generator) + torch.eye(6)[labels]
    optimiser = torch.optim.SGD(model.parameters(), lr=0.2)
    for _ in range(5):
        optimiser.zero_grad()
        torch.nn.functional.cross_entropy(model(inputs), labels).backward()
        optimiser.step()
    return {name: tensor.detach() for name, tensor in model.state_dict().items()}


def members() -> dict[str, Client]:
    """Return four members: `east` is idle from round 6 on, and `west` sends NaN."""
    return {
        "north": member((0, 1)),
        "south": member((1, 2)),
        "east": member((0, 2), idle_from=IDLE_FROM),
        "west": member((2,), nan=True),
    }


def consortium(folder: Path, **settings: Any) -> CelmStrategy:
    usual: dict[str, Any] = {"retry_wait": 0.0, "probe": {"steps": 10}}
    return CelmStrategy(network(), (6,), 3, folder=folder, **{**usual, **settings})


def play_consortium(
    folder: Path, rounds: int = ROUNDS, grid: SmallGrid | None = None, **settings: Any
) -> ContributionResult:
    return consortium(folder, **settings).start(grid or SmallGrid(members()), initial(), num_rounds=rounds)
