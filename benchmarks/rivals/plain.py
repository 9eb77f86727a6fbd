"""Federated averaging as one writes it by hand in PyTorch; where batches come from is left to the caller."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence

import torch
from dealt import Dealt, Pair
from torch import Tensor, nn

Batches = Callable[[], Iterable[Pair]]
"""Gives the batches of an epoch."""


def federate(dealt: Dealt, sources: Sequence[Batches]) -> None:
    """All rounds, one client after the other; then the report."""
    model = dealt.model()
    seconds = []
    for _ in range(dealt.all_rounds):
        start = time.perf_counter()
        shared = {key: value.clone() for key, value in model.state_dict().items()}
        trained = []
        for batches in sources:
            model.load_state_dict(shared)
            fit(model, batches(), dealt.settings["lr"])
            trained.append({key: value.clone() for key, value in model.state_dict().items()})
        model.load_state_dict(average(trained))
        seconds.append(time.perf_counter() - start)
    dealt.report(seconds, model)


def fit(model: nn.Module, batches: Iterable[Pair], lr: float) -> None:
    """One epoch of SGD."""
    model.train()
    optimiser = torch.optim.SGD(model.parameters(), lr=lr)
    for inputs, labels in batches:
        optimiser.zero_grad()
        nn.functional.cross_entropy(model(inputs), labels).backward()
        optimiser.step()


def average(states: Sequence[dict[str, Tensor]]) -> dict[str, Tensor]:
    return {key: torch.stack([state[key] for state in states]).mean(0) for key in states[0]}


def shuffled(inputs: Tensor, labels: Tensor, batch: int) -> Iterator[Pair]:
    """Batches of tensors in memory, in a random order."""
    for rows in torch.randperm(len(labels)).split(batch):
        yield inputs[rows], labels[rows]
