"""A client's training in small: tasks on tiny models, softmax regression by hand, memory through a file."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from celm.base.files import read_tensors, write_tensors
from celm.base.state_serialisation import flatten_state, restore_state
from celm.models.heads import find_head
from celm.models.state_dict import get_state
from celm.objectives.objective import AnyObjective, LocalTask
from celm.rules.messages import ClientUpdate, RoundData, ServerMessage

Array = np.ndarray
CLASSES, INPUTS = 3, 4


def linear(seed: int = 0, classes: int = CLASSES) -> nn.Linear:
    torch.manual_seed(seed)
    return nn.Linear(INPUTS, classes).double()


def net(seed: int = 0, classes: int = CLASSES) -> nn.Sequential:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(INPUTS, 5), nn.Tanh(), nn.Linear(5, classes)).double()


def samples(count: int = 6, seed: int = 1, classes: int = CLASSES) -> tuple[Tensor, Tensor]:
    draw = torch.Generator().manual_seed(seed)
    x = torch.randn(count, INPUTS, generator=draw, dtype=torch.float64)
    return x, torch.randint(classes, (count,), generator=draw)


def task_of(
    module: nn.Module,
    labels: Tensor,
    *,
    classes: int = CLASSES,
    lr: float = 0.1,
    memory: Any = None,
    extras: Mapping[str, Tensor] | None = None,
) -> LocalTask[Any]:
    module.train()
    return LocalTask(
        module=module,
        parameters=[parameter for parameter in module.parameters() if parameter.requires_grad],
        head=find_head(module, classes),
        message=ServerMessage(get_state(module), extras or {}),
        labels=labels,
        classes=classes,
        lr=lr,
        client_state=memory,
    )


def step(objective: AnyObjective, task: LocalTask[Any], context: Any, inputs: Tensor, labels: Tensor) -> None:
    """One step of plain SGD."""
    gradients = objective.gradients(task, context, inputs, labels)
    with torch.no_grad():
        for parameter, gradient in zip(task.parameters, gradients, strict=True):
            parameter -= task.lr * gradient


def softmax(logits: Array) -> Array:
    raised = np.exp(logits - logits.max(axis=1, keepdims=True))
    return raised / raised.sum(axis=1, keepdims=True)


def joined(layer: nn.Module | Mapping[str, Tensor]) -> Array:
    """A linear layer as one matrix `[K, d + 1]`, the bias last."""
    state = layer.state_dict() if isinstance(layer, nn.Module) else layer
    return np.hstack([state["weight"].numpy(), state["bias"].numpy()[:, None]])


def together(gradients: Sequence[Tensor]) -> Array:
    """The gradients of a linear layer as one matrix `[K, d + 1]`."""
    weight, bias = gradients
    return np.hstack([weight.detach().numpy(), bias.detach().numpy()[:, None]])


def slope(W: Array, x: Tensor, y: Tensor, scales: Array | float = 1.0) -> Array:
    """The gradient of mean cross-entropy of the logits `scales * W [x; 1]`, derived on paper."""
    rows = np.hstack([x.numpy(), np.ones((len(x), 1))])
    error = softmax(scales * (rows @ W.T)) - np.eye(len(W))[y.numpy()]
    return (scales * error).T @ rows / len(x)


def numerically(
    objective: AnyObjective, task: LocalTask[Any], context: Any, x: Tensor, y: Tensor
) -> list[Array]:
    """The gradient of `objective.loss` by central differences."""
    found = []
    with torch.no_grad():
        for parameter in task.parameters:
            flat, slopes = parameter.view(-1), []
            for i in range(len(flat)):
                value, ends = flat[i].item(), []
                for side in (1e-6, -1e-6):
                    flat[i] = value + side
                    ends.append(objective.loss(task, context, x, y).item())
                flat[i] = value
                slopes.append((ends[0] - ends[1]) / 2e-6)
            found.append(np.reshape(slopes, parameter.shape))
    return found


def a_round(
    delivered: Mapping[str, Mapping[str, Tensor]],
    returned: Mapping[str, Mapping[str, Tensor]],
    extras: Mapping[str, Mapping[str, Tensor]] | None = None,
) -> RoundData:
    said = extras or {}
    return RoundData(
        1,
        dict(next(iter(delivered.values()))),
        {name: ServerMessage(dict(model)) for name, model in delivered.items()},
        {name: ClientUpdate(dict(model), 1, 1, said.get(name, {})) for name, model in returned.items()},
    )


def after_a_file(tree: Any, kind: type, folder: Path) -> Any:
    """What is left of a memory or a state that is saved and read again."""
    tensors: dict[str, Tensor] = {}
    packed = flatten_state(tree, "memory", tensors)
    write_tensors(folder / "memory.safetensors", tensors, {"tree": json.loads(json.dumps(packed))})
    read, about = read_tensors(folder / "memory.safetensors")
    return restore_state(about["tree"], read, kind)
