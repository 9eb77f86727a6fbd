"""One client's work in one round, as a function: Job -> Outcome. Where it runs is the engine's business."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal, Protocol

import torch
from torch import Tensor, nn

from celm.base.randomness import derive, generator
from celm.federation.architecture import Recipe
from celm.federation.experiment import Train
from celm.method.stacking import logits_of
from celm.metrics.accuracy import confusion
from celm.models.state import StateDict, load_state, state_of
from celm.objectives.descent import descend
from celm.objectives.habits import Habits
from celm.objectives.objective import AnyObjective, Task
from celm.objectives.smoothed import Smoothed
from celm.rules.exchange import Delivery, Update

Set = Literal["test", "validation"]
EVALUATION_BATCH = 1000
"""Fixed, so that evaluation gives the same bits however it is shared out."""


NOTHING = torch.empty(0, dtype=torch.int64)


@dataclass(frozen=True)
class Job:
    client: str
    number: int
    lr: float
    delivery: Delivery
    memory: Any = None
    habits: Habits = field(default_factory=Habits)


@dataclass(frozen=True)
class Outcome:
    update: Update
    memory: Any = None


@dataclass(frozen=True)
class LocalData:
    """What one client holds: rows of the training inputs `[n]`, and the labels it has for them `[n]`.

    What is held out for validation is apart: it is not trained on.
    """

    rows: Tensor
    labels: Tensor
    held_rows: Tensor = NOTHING
    held_labels: Tensor = NOTHING

    def to(self, device: str) -> LocalData:
        moved = (self.rows, self.labels, self.held_rows, self.held_labels)
        return LocalData(*(tensor.to(device) for tensor in moved))


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
    recipe: Recipe | None = None
    """How to build the module again elsewhere; None where it stays in this process."""
    parameters: list[nn.Parameter] = field(init=False)

    def __post_init__(self) -> None:
        for name in ("module", "inputs", "test_inputs", "test_labels", "fill"):
            value = getattr(self, name)
            if value is not None:
                setattr(self, name, value.to(self.device))
        if self.inputs.ndim == 4 and any(isinstance(part, nn.Conv2d) for part in self.module.modules()):
            # Half again as fast for convolutions; the numbers are the same but for rounding.
            self.module = self.module.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
            self.inputs = self.inputs.contiguous(memory_format=torch.channels_last)
            self.test_inputs = self.test_inputs.contiguous(memory_format=torch.channels_last)
        self.parameters = [parameter for parameter in self.module.parameters() if parameter.requires_grad]
        self.holdings = {name: holding.to(self.device) for name, holding in self.holdings.items()}

    def work(self, job: Job) -> Outcome:
        holding, habits = self.holdings[job.client], job.habits
        objective = Smoothed(self.objective, habits.smoothing) if habits.smoothing else self.objective
        load_state(self.module, job.delivery.model)
        task: Task[Any] = Task(
            module=self.module,
            parameters=self.parameters,
            head=self.head,
            delivery=job.delivery,
            labels=holding.labels,
            classes=self.classes,
            lr=job.lr * habits.rate,
            memory=job.memory,
        )
        # Layers such as dropout draw from the global stream; it, too, is a function of seed, round and client.
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(derive(self.seed, "layers", job.number, job.client))
            self.module.train()
            context = objective.begin(task)
            steps = descend(
                objective,
                task,
                context,
                self.inputs,
                holding.rows,
                batch=self.train.batch,
                epochs=habits.epochs or self.train.epochs,
                momentum=self.train.momentum,
                weight_decay=self.train.weight_decay,
                fill=self.fill,
                order=generator(self.seed, "batches", job.number, job.client),
            )
        extras = objective.extras(task, context, steps)
        memory = objective.remember(task, context, steps)
        model = state_of(self.module)
        examined = None if job.delivery.examine is None else self.examine(job.client, job.delivery.examine)
        update = Update(model, steps=steps, size=len(holding.rows), extras=extras, examined=examined)
        return Outcome(update, memory)

    def examine(self, client: str, model: StateDict) -> float | None:
        """The accuracy of a model on what the client holds out; None where that is nothing."""
        holding = self.holdings[client]
        if not len(holding.held_rows):
            return None
        counts = self.count(model, self.inputs.index_select(0, holding.held_rows), holding.held_labels)
        return (counts.diagonal().sum() / counts.sum()).item()

    def evaluate(self, model: StateDict, batch: int, on: Set) -> Tensor:
        """Confusion counts `[K, K]` of a model on one batch of a set."""
        part = slice(batch * EVALUATION_BATCH, (batch + 1) * EVALUATION_BATCH)
        if on == "test":
            return self.count(model, self.test_inputs[part], self.test_labels[part])
        rows, labels = self.validation
        return self.count(model, self.inputs.index_select(0, rows[part]), labels[part])

    @torch.no_grad()
    def count(self, model: StateDict, inputs: Tensor, labels: Tensor) -> Tensor:
        load_state(self.module, model)
        self.module.eval()
        return confusion(logits_of(self.module(inputs)).argmax(dim=1), labels, self.classes).cpu()

    @cached_property
    def validation(self) -> tuple[Tensor, Tensor]:
        """Rows and labels of what all clients hold out, pooled in client order."""
        kept = self.holdings.values()
        return torch.cat([held.held_rows for held in kept]), torch.cat([held.held_labels for held in kept])

    def evaluation_batches(self, on: Set) -> int:
        size = len(self.test_labels) if on == "test" else len(self.validation[1])
        return -(-size // EVALUATION_BATCH)


class Engine(Protocol):
    """Who runs the jobs. Results come in the order asked for and do not depend on who ran them."""

    def work(self, jobs: Sequence[Job]) -> list[Outcome]: ...

    def evaluate(self, models: Sequence[StateDict], on: Set = "test") -> list[Tensor]: ...

    def close(self) -> None: ...
