"""FedGELA: one fixed classifier for all, scaled at each client to the classes that it has.

    M = √(K/(K-1)) (I - 11ᵀ/K) Pᵀ   [K, d]                 rows of a simplex ETF: length 1, cosines -1/(K-1)
    client:  CE( Φ ∘ (M h) / T ),   Φ_c = K n_c / n         n_c of its n samples are of class c
    judged:  M h

P `[d, K]` has orthonormal columns, drawn at random; M is never trained. h are the features of the model, through
Linear(d', d') - ReLU - Linear(d', d) - BatchNorm, as in the authors' code.

Fan, Yao, Zhang, Han, Zhang, Wang, "Federated learning with bilateral curation for partially class-disjoint
data", NeurIPS 2023 (MediaBrain-SJTU/FedGELA).
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Annotated, ClassVar

import torch
from pydantic import Field, PositiveInt
from torch import Tensor, nn
from torch.nn import functional as F

from celm.base.errors import CelmError
from celm.method.stacking import logits_of
from celm.models.anatomy import linear_head, replace_head
from celm.models.state import StateDict
from celm.objectives.objective import Objective, ServerPart, Task
from celm.objectives.vectors import clipped


@dataclass(frozen=True)
class FedGela(Objective[None]):
    """Cross-entropy on a fixed simplex classifier, scaled to the classes of the client."""

    projection: PositiveInt = 256
    """d, the features that enter the classifier; at least as many as classes. The authors use 84 to 512."""
    temperature: Annotated[float, Field(gt=0, allow_inf_nan=False)] = 0.2
    """T; the authors' default."""
    clip: Annotated[float, Field(ge=0)] = 20.0
    """Longest gradient; the authors' value. 0: any length, which with a small T may not converge."""

    @property
    def keeps_architecture(self) -> bool:
        return False

    def adapt(self, module: nn.Module, head: str) -> nn.Module:
        old = linear_head(module, head)
        if self.projection < old.out_features:
            raise CelmError(
                f"setting 'objective.projection': {self.projection} is less than {old.out_features} classes"
            )
        classifier = nn.Linear(self.projection, old.out_features, bias=False)
        classifier.weight.requires_grad_(False).copy_(simplex(old.out_features, self.projection))
        layers: OrderedDict[str, nn.Module] = OrderedDict(
            hidden=nn.Linear(old.in_features, old.in_features),
            relu=nn.ReLU(),
            projection=nn.Linear(old.in_features, self.projection),
            norm=nn.BatchNorm1d(self.projection),
            classifier=classifier,
        )
        return replace_head(module, head, nn.Sequential(layers).to(old.weight))

    def server(self, head: tuple[str, ...], trained: tuple[str, ...]) -> ServerPart[Fixed]:
        return FixedHead(head)

    def begin(self, task: Task[None]) -> Tensor:
        """Φ `[K]`."""
        counts = torch.bincount(task.labels, minlength=task.classes)
        return task.classes * counts / max(len(task.labels), 1)

    def loss(self, task: Task[None], context: Tensor, inputs: Tensor, labels: Tensor) -> Tensor:
        with lone_sample(task.module, inputs):
            logits = logits_of(task.module(inputs))
        return F.cross_entropy(logits * context.to(logits.dtype) / self.temperature, labels)

    def gradients(
        self, task: Task[None], context: Tensor, inputs: Tensor, labels: Tensor
    ) -> Sequence[Tensor]:
        return clipped(super().gradients(task, context, inputs, labels), self.clip)


def simplex(classes: int, dimensions: int) -> Tensor:
    """M `[K, d]`, from the global random stream, in float64."""
    drawn = torch.rand(dimensions, classes, dtype=torch.float64)
    orthonormal: Tensor = torch.linalg.qr(drawn).Q
    centred = torch.eye(classes, dtype=torch.float64) - 1 / classes
    return math.sqrt(classes / max(classes - 1, 1)) * centred @ orthonormal.T


@contextmanager
def lone_sample(module: nn.Module, inputs: Tensor) -> Iterator[None]:
    """A batch of one has no variance: BatchNorm then takes the statistics it has, and leaves them."""
    layers = [part for part in module.modules() if isinstance(part, nn.BatchNorm1d) and part.training]
    if len(inputs) > 1:
        layers = []
    for layer in layers:
        layer.eval()
    try:
        yield
    finally:
        for layer in layers:
            layer.train()


@dataclass(frozen=True)
class Fixed:
    """The head's tensors, as they were at the beginning."""

    of: Mapping[str, Tensor]


class FixedHead(ServerPart[Fixed]):
    """Keeps the global head what it was: a mean of equal heads is equal but for rounding, which would add up."""

    state_type: ClassVar[type] = Fixed

    def __init__(self, head: tuple[str, ...]) -> None:
        self.head = head

    def init(self, model: StateDict) -> Fixed:
        return Fixed({name: model[name] for name in self.head})

    def adjust(self, state: Fixed, model: StateDict) -> StateDict:
        return {**model, **state.of}
