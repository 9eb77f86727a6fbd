"""The engine that trains clients one after the other in this process."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from celm.federation.client_trainer import ClientResult, ClientTask, ClientTrainer, EvalSet
from celm.models.state_dict import StateDict


class InProcessEngine:
    """An engine that trains and evaluates in this process."""

    def __init__(self, trainer: ClientTrainer) -> None:
        self.trainer = trainer

    def train(self, tasks: Sequence[ClientTask]) -> list[ClientResult]:
        """Train clients; results come in the order of the tasks."""
        return [self.trainer.train(task) for task in tasks]

    def evaluate(self, models: Sequence[StateDict], on: EvalSet = "test") -> list[Tensor]:
        """Return the confusion counts `[K, K]` of each model."""
        batches = range(self.trainer.num_evaluation_batches(on))
        return [
            sum_counts([self.trainer.evaluate(model, batch, on) for batch in batches]) for model in models
        ]

    def close(self) -> None:
        """Do nothing: this engine has no resources to release."""


def sum_counts(counts: Sequence[Tensor]) -> Tensor:
    """Add up the confusion counts of several batches."""
    return torch.stack(list(counts)).sum(0)
