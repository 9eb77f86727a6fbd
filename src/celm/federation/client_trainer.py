"""Train one client in one round: ClientTask -> ClientResult. An engine chooses the process."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal, Protocol

import torch
from torch import Tensor, nn

from celm.base.errors import CelmError
from celm.base.randomness import derive_seed, make_generator
from celm.core.loss_derivatives import LossDerivatives, loss_derivatives
from celm.core.model_stack import extract_logits
from celm.experiment.config import TrainConfig
from celm.federation.model_spec import ModelSpec
from celm.metrics.accuracy import count_confusions
from celm.models.staged import StagedModel, TrainedStage
from celm.models.state_dict import StateDict, get_state, load_state
from celm.objectives.label_smoothing import LabelSmoothing
from celm.objectives.local_sgd import TrainingOverrides, train_locally
from celm.objectives.objective import AnyObjective, LocalTask
from celm.objectives.private_update import privatise_update
from celm.rules.messages import ClientUpdate, ServerMessage

EvalSet = Literal["test", "validation"]
_EVALUATION_BATCH = 1000
"""Fixed, so that evaluation gives the same bits on any number of workers."""


_NO_ROWS = torch.empty(0, dtype=torch.int64)


@dataclass(frozen=True)
class ClientTask:
    client: str
    round_number: int
    lr: float
    message: ServerMessage
    client_state: Any = None
    overrides: TrainingOverrides = field(default_factory=TrainingOverrides)


@dataclass(frozen=True)
class ClientResult:
    update: ClientUpdate
    client_state: Any = None


@dataclass(frozen=True)
class ClientData:
    """The data of one client: rows of the training inputs `[n]` and their labels `[n]`.

    Validation data are held out: the client does not train on them.
    """

    rows: Tensor
    labels: Tensor
    validation_rows: Tensor = _NO_ROWS
    validation_labels: Tensor = _NO_ROWS

    def to(self, device: str) -> ClientData:
        tensors = (self.rows, self.labels, self.validation_rows, self.validation_labels)
        return ClientData(*(tensor.to(device) for tensor in tensors))


@dataclass
class ClientTrainer:
    """Everything that is needed to run tasks: data, architecture, objective."""

    module: nn.Module
    head: str
    objective: AnyObjective
    train_config: TrainConfig
    seed: int
    classes: int
    inputs: Tensor
    client_data: Mapping[str, ClientData]
    test_inputs: Tensor
    test_labels: Tensor
    pad_value: Tensor | None = None
    device: str = "cpu"
    model_spec: ModelSpec | None = None
    """How to build the module in another process; None if it stays in this one."""
    inputs_encoded: bool = False
    """Whether inputs are outputs of the module's frozen stage."""
    parameters: list[nn.Parameter] = field(init=False)

    def __post_init__(self) -> None:
        for name in ("module", "inputs", "test_inputs", "test_labels", "pad_value"):
            value = getattr(self, name)
            if value is not None:
                setattr(self, name, value.to(self.device))
        if isinstance(self.module, StagedModel):
            self.module = TrainedStage(self.module, self.inputs_encoded)
        if self.inputs.ndim == 4 and any(isinstance(part, nn.Conv2d) for part in self.module.modules()):
            # Convolutions run 1.5 times as fast; the numbers agree up to rounding.
            self.module = self.module.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
            self.inputs = self.inputs.contiguous(memory_format=torch.channels_last)
            self.test_inputs = self.test_inputs.contiguous(memory_format=torch.channels_last)
        self.parameters = [parameter for parameter in self.module.parameters() if parameter.requires_grad]
        self.client_data = {name: data.to(self.device) for name, data in self.client_data.items()}

    def train(self, task: ClientTask) -> ClientResult:
        data, overrides = self.client_data[task.client], task.overrides
        config = self.train_config
        smoothing = overrides.label_smoothing or config.label_smoothing
        objective = LabelSmoothing(self.objective, smoothing) if smoothing else self.objective
        load_state(self.module, task.message.model)
        delivered = [parameter.detach().clone() for parameter in self.parameters] if config.dp_clip else []
        local_task: LocalTask[Any] = LocalTask(
            module=self.module,
            parameters=self.parameters,
            head=self.head,
            message=task.message,
            labels=data.labels,
            classes=self.classes,
            lr=task.lr * overrides.lr_factor,
            client_state=task.client_state,
        )
        # Dropout draws from the global stream, so seed that stream by round and client, too.
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(derive_seed(self.seed, "layers", task.round_number, task.client))
            self.module.train()
            context = objective.start_round(local_task)
            num_steps = train_locally(
                objective,
                local_task,
                context,
                self.inputs,
                data.rows,
                batch_size=config.batch,
                epochs=overrides.epochs or config.epochs,
                momentum=config.momentum,
                weight_decay=config.weight_decay,
                pad_value=self.pad_value,
                generator=make_generator(self.seed, "batches", task.round_number, task.client),
                optimizer=config.optimizer,
            )
        extra_tensors = objective.extra_tensors(local_task, context, num_steps)
        client_state = objective.next_client_state(local_task, context, num_steps)
        if config.dp_clip:
            if extra_tensors:
                raise CelmError(
                    "train.dp_clip: the objective also sends tensors without clipping and noise",
                    "choose another objective",
                )
            noise_generator = make_generator(self.seed, "update noise", task.round_number, task.client)
            privatise_update(delivered, self.parameters, config.dp_clip, config.dp_noise, noise_generator)
        model = get_state(self.module)
        reported_accuracy = (
            None
            if task.message.model_to_evaluate is None
            else self._evaluate_on_client(task.client, task.message.model_to_evaluate)
        )
        update = ClientUpdate(
            model,
            num_steps=num_steps,
            num_examples=len(data.rows),
            extra_tensors=extra_tensors,
            reported_accuracy=reported_accuracy,
        )
        return ClientResult(update, client_state)

    def _evaluate_on_client(self, client: str, model: StateDict) -> float | None:
        """Return the accuracy of a model on the client's validation data; None if there are none."""
        data = self.client_data[client]
        if not len(data.validation_rows):
            return None
        counts = self._confusion_counts(
            model, self.inputs.index_select(0, data.validation_rows), data.validation_labels
        )
        return (counts.diagonal().sum() / counts.sum()).item()

    def evaluate(self, model: StateDict, batch_index: int, on: EvalSet) -> Tensor:
        """Return confusion counts `[K, K]` of a model on one batch of a set."""
        part = slice(batch_index * _EVALUATION_BATCH, (batch_index + 1) * _EVALUATION_BATCH)
        if on == "test":
            return self._confusion_counts(model, self.test_inputs[part], self.test_labels[part])
        rows, labels = self.validation_set
        return self._confusion_counts(model, self.inputs.index_select(0, rows[part]), labels[part])

    @torch.no_grad()
    def _confusion_counts(self, model: StateDict, inputs: Tensor, labels: Tensor) -> Tensor:
        load_state(self.module, model)
        self.module.eval()
        return count_confusions(extract_logits(self.module(inputs)).argmax(dim=1), labels, self.classes).cpu()

    def differentiate(self, model: StateDict, direction: StateDict | None) -> LossDerivatives:
        """Return the derivatives of the mean cross-entropy of a model on the validation data of all clients."""
        rows, labels = self.validation_set
        inputs = self.inputs.index_select(0, rows)
        return loss_derivatives(self.module, model, inputs, labels, direction, _EVALUATION_BATCH)

    @cached_property
    def validation_set(self) -> tuple[Tensor, Tensor]:
        """Rows and labels of the validation data of all clients, in client order."""
        all_data = self.client_data.values()
        return torch.cat([data.validation_rows for data in all_data]), torch.cat(
            [data.validation_labels for data in all_data]
        )

    def num_evaluation_batches(self, on: EvalSet) -> int:
        size = len(self.test_labels) if on == "test" else len(self.validation_set[1])
        return -(-size // _EVALUATION_BATCH)


class Engine(Protocol):
    """An executor of tasks. Results are in the order of the tasks and do not depend on the engine."""

    def train(self, tasks: Sequence[ClientTask]) -> list[ClientResult]: ...

    def evaluate(self, models: Sequence[StateDict], on: EvalSet = "test") -> list[Tensor]: ...

    def close(self) -> None: ...
