"""One client's work in one round, as a function: Job -> Outcome. Where it runs is the engine's business."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from celm.base.randomness import derive, generator
from celm.federation.experiment import Train
from celm.method.stacking import logits_of
from celm.metrics.accuracy import confusion
from celm.models.state import StateDict, load_state, state_of
from celm.objectives.descent import descend
from celm.objectives.objective import AnyObjective, Task
from celm.rules.exchange import Delivery, Update

EVALUATION_BATCH = 1000
"""Fixed, so that evaluation gives the same bits however it is shared out."""


@dataclass(frozen=True)
class Job:
    client: str
    number: int
    lr: float
    delivery: Delivery
    memory: Any = None


@dataclass(frozen=True)
class Outcome:
    update: Update
    memory: Any = None


@dataclass(frozen=True)
class LocalData:
    """What one client holds: rows of the training inputs `[n]`, and the labels it has for them `[n]`."""

    rows: Tensor
    labels: Tensor


@dataclass
class Workbench:
    """Everything a place needs to do jobs: the data, the architecture, the objective."""

    module: nn.Module
    head: str
    objective: AnyObjective
    train: Train
    seed: int
    classes: int
    inputs: Tensor
    holdings: Mapping[str, LocalData]
    test_inputs: Tensor
    test_labels: Tensor
    fill: Tensor | None = None
    device: str = "cpu"
    parameters: list[nn.Parameter] = field(init=False)

    def __post_init__(self) -> None:
        for name in ("module", "inputs", "test_inputs", "test_labels", "fill"):
            value = getattr(self, name)
            if value is not None:
                setattr(self, name, value.to(self.device))
        self.parameters = [parameter for parameter in self.module.parameters() if parameter.requires_grad]
        self.holdings = {
            name: LocalData(holding.rows.to(self.device), holding.labels.to(self.device))
            for name, holding in self.holdings.items()
        }

    def work(self, job: Job) -> Outcome:
        holding = self.holdings[job.client]
        load_state(self.module, job.delivery.model)
        task: Task[Any] = Task(
            module=self.module,
            parameters=self.parameters,
            head=self.head,
            delivery=job.delivery,
            labels=holding.labels,
            classes=self.classes,
            lr=job.lr,
            memory=job.memory,
        )
        # Layers such as dropout draw from the global stream; it, too, is a function of seed, round and client.
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(derive(self.seed, "layers", job.number, job.client))
            self.module.train()
            context = self.objective.begin(task)
            steps = descend(
                self.objective,
                task,
                context,
                self.inputs,
                holding.rows,
                batch=self.train.batch,
                epochs=self.train.epochs,
                momentum=self.train.momentum,
                weight_decay=self.train.weight_decay,
                fill=self.fill,
                order=generator(self.seed, "batches", job.number, job.client),
            )
        extras = self.objective.extras(task, context, steps)
        update = Update(state_of(self.module), steps=steps, size=len(holding.rows), extras=extras)
        return Outcome(update, self.objective.remember(task, context, steps))

    @torch.no_grad()
    def evaluate(self, model: StateDict, batch: int) -> Tensor:
        """Confusion counts `[K, K]` of a model on one batch of the test set."""
        load_state(self.module, model)
        self.module.eval()
        part = slice(batch * EVALUATION_BATCH, (batch + 1) * EVALUATION_BATCH)
        predicted = logits_of(self.module(self.test_inputs[part])).argmax(dim=1)
        return confusion(predicted, self.test_labels[part], self.classes).cpu()

    @property
    def evaluation_batches(self) -> int:
        return -(-len(self.test_labels) // EVALUATION_BATCH)


class Engine(Protocol):
    """Who runs the jobs. Results come in the order asked for and do not depend on who ran them."""

    def work(self, jobs: Sequence[Job]) -> list[Outcome]: ...

    def evaluate(self, models: Sequence[StateDict]) -> list[Tensor]: ...

    def close(self) -> None: ...
