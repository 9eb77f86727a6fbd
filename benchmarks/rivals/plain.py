"""Federated averaging in plain PyTorch. The caller provides the batches."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence

import torch
from dealt import Pair, RivalData
from torch import Tensor, nn

Batches = Callable[[], Iterable[Pair]]
"""Function that returns the batches of an epoch."""


def federate(data: RivalData, sources: Sequence[Batches]) -> None:
    """Run all rounds, one client after the other, and print the report."""
    model = data.model()
    seconds = []
    for _ in range(data.all_rounds):
        start = time.perf_counter()
        global_state = {key: value.clone() for key, value in model.state_dict().items()}
        trained = []
        for batches in sources:
            model.load_state_dict(global_state)
            train_epoch(model, batches(), data.settings["lr"])
            trained.append({key: value.clone() for key, value in model.state_dict().items()})
        model.load_state_dict(average(trained))
        seconds.append(time.perf_counter() - start)
    data.report(seconds, model)


def train_epoch(model: nn.Module, batches: Iterable[Pair], lr: float) -> None:
    """Train one epoch by SGD."""
    model.train()
    optimiser = torch.optim.SGD(model.parameters(), lr=lr)
    for inputs, labels in batches:
        optimiser.zero_grad()
        nn.functional.cross_entropy(model(inputs), labels).backward()
        optimiser.step()


def average(states: Sequence[dict[str, Tensor]]) -> dict[str, Tensor]:
    return {key: torch.stack([state[key] for state in states]).mean(0) for key in states[0]}


def shuffled_batches(inputs: Tensor, labels: Tensor, batch: int) -> Iterator[Pair]:
    """Yield batches of tensors in memory, in random order."""
    for rows in torch.randperm(len(labels)).split(batch):
        yield inputs[rows], labels[rows]
