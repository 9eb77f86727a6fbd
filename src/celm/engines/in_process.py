"""Clients one after the other, in this process."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from celm.federation.jobs import Job, Outcome, Set, Workbench
from celm.models.state import StateDict


class InProcess:
    def __init__(self, workbench: Workbench) -> None:
        self.workbench = workbench

    def work(self, jobs: Sequence[Job]) -> list[Outcome]:
        return [self.workbench.work(job) for job in jobs]

    def evaluate(self, models: Sequence[StateDict], on: Set = "test") -> list[Tensor]:
        batches = range(self.workbench.evaluation_batches(on))
        return [sum_of([self.workbench.evaluate(model, batch, on) for batch in batches]) for model in models]

    def close(self) -> None:
        pass


def sum_of(counts: Sequence[Tensor]) -> Tensor:
    total = counts[0].clone()
    for count in counts[1:]:
        total += count
    return total
