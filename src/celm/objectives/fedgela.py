"""FedGELA: one fixed classifier for all clients, scaled to the classes that each client has.

    M = √(K/(K-1)) (I - 11ᵀ/K) Pᵀ   [K, d]                 rows of a simplex ETF: length 1, cosines -1/(K-1)
    client:  CE( Φ ∘ (M h) / T ),   Φ_c = K n_c / n         n_c of its n samples are of class c
    tested:  M h

P `[d, K]` has random orthonormal columns; M is never trained. h are the features of the model after
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
from celm.core.model_stack import extract_logits
from celm.models.heads import get_linear_head, replace_head
from celm.models.state_dict import StateDict
from celm.objectives.objective import LocalTask, Objective, ServerHook
from celm.objectives.training_ops import clip_list_norm


@dataclass(frozen=True)
class FedGela(Objective[None]):
    """Cross-entropy on a fixed simplex classifier, scaled to each client."""

    projection: PositiveInt = 256
    """d, the number of features of the classifier, at least the number of classes. The authors use 84 to 512."""
    temperature: Annotated[float, Field(gt=0, allow_inf_nan=False)] = 0.2
    """T; the authors' default."""
    clip: Annotated[float, Field(ge=0)] = 20.0
    """Largest gradient norm; the authors' value. 0: no bound, which may not converge with a small T."""

    @property
    def keeps_architecture(self) -> bool:
        return False

    def adapt_model(self, module: nn.Module, head: str) -> nn.Module:
        old_head = get_linear_head(module, head)
        if self.projection < old_head.out_features:
            raise CelmError(
                f"setting 'objective.projection' is less than the {old_head.out_features} classes: {self.projection}"
            )
        classifier = nn.Linear(self.projection, old_head.out_features, bias=False)
        classifier.weight.requires_grad_(False).copy_(simplex_etf(old_head.out_features, self.projection))
        layers: OrderedDict[str, nn.Module] = OrderedDict(
            hidden=nn.Linear(old_head.in_features, old_head.in_features),
            relu=nn.ReLU(),
            projection=nn.Linear(old_head.in_features, self.projection),
            norm=nn.BatchNorm1d(self.projection),
            classifier=classifier,
        )
        return replace_head(module, head, nn.Sequential(layers).to(old_head.weight))

    def server_hook(self, head: tuple[str, ...], trained: tuple[str, ...]) -> ServerHook[FedGelaState]:
        return _FixedHeadHook(head)

    def start_round(self, task: LocalTask[None]) -> Tensor:
        """Return Φ `[K]`."""
        counts = torch.bincount(task.labels, minlength=task.classes)
        return task.classes * counts / max(len(task.labels), 1)

    def loss(self, task: LocalTask[None], context: Tensor, inputs: Tensor, labels: Tensor) -> Tensor:
        with _running_statistics_for_single_sample(task.module, inputs):
            logits = extract_logits(task.module(inputs))
        return F.cross_entropy(logits * context.to(logits.dtype) / self.temperature, labels)

    def gradients(
        self, task: LocalTask[None], context: Tensor, inputs: Tensor, labels: Tensor
    ) -> Sequence[Tensor]:
        return clip_list_norm(super().gradients(task, context, inputs, labels), self.clip)


def simplex_etf(classes: int, dimensions: int) -> Tensor:
    """Return M `[K, d]` in float64, drawn from the global random stream."""
    random_matrix = torch.rand(dimensions, classes, dtype=torch.float64)
    orthonormal: Tensor = torch.linalg.qr(random_matrix).Q
    centred = torch.eye(classes, dtype=torch.float64) - 1 / classes
    return math.sqrt(classes / max(classes - 1, 1)) * centred @ orthonormal.T


@contextmanager
def _running_statistics_for_single_sample(module: nn.Module, inputs: Tensor) -> Iterator[None]:
    """Let BatchNorm use its running statistics for a batch of one sample, which has no variance."""
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
class FedGelaState:
    """The head's initial tensors."""

    head_tensors: Mapping[str, Tensor]


class _FixedHeadHook(ServerHook[FedGelaState]):
    """A hook that restores the global head after each round, since the rounding of means would accumulate."""

    state_type: ClassVar[type] = FedGelaState

    def __init__(self, head: tuple[str, ...]) -> None:
        self.head = head

    def init(self, model: StateDict) -> FedGelaState:
        return FedGelaState({name: model[name] for name in self.head})

    def postprocess(self, state: FedGelaState, model: StateDict) -> StateDict:
        return {**model, **state.head_tensors}
