"""A dataset in memory, and what a source of one must say."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import ClassVar

import torch
from torch import Tensor

from celm.base.registry import Configurable


@dataclass(frozen=True)
class Dataset:
    """Decoded and normalised once, held in memory; training only ever gathers rows.

    Inputs are float32 `[n, *shape]`, labels int64 `[n]`.
    """

    name: str
    train_inputs: Tensor
    train_labels: Tensor
    test_inputs: Tensor
    test_labels: Tensor
    classes: tuple[str, ...]
    owners: tuple[str, ...] | None = None
    """Who holds each training sample, where the data says so: the natural split."""
    fill: Tensor | None = None
    """`[channels]` value of a black pixel after normalisation, where training crops and flips; else None."""

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(self.train_inputs.shape[1:])

    def limited(self, count: int) -> Dataset:
        """The first `count` training samples of each class, in their order; the test set stays whole."""
        of_class = [(self.train_labels == k).nonzero().view(-1)[:count] for k in range(len(self.classes))]
        rows = torch.cat(of_class).sort().values
        owners = None if self.owners is None else tuple(self.owners[row] for row in rows.tolist())
        return replace(
            self, train_inputs=self.train_inputs[rows], train_labels=self.train_labels[rows], owners=owners
        )


@dataclass(frozen=True)
class Defaults:
    """Settings that depend on the dataset, used where the experiment does not say."""

    model: str = "mlp"
    split: str = "pls"
    rounds: int = 100
    lr: float = 0.1
    splits: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    """Split name to settings of that split that suit this dataset."""


@dataclass(frozen=True)
class Source(Configurable, ABC):
    """Where a dataset comes from. A subclass is a frozen dataclass; its fields are settings (`dataset.*`)."""

    defaults: ClassVar[Defaults] = Defaults()

    @abstractmethod
    def load(self) -> Dataset: ...


def normalised(images: Tensor, mean: tuple[float, ...], std: tuple[float, ...]) -> Tensor:
    """uint8 `[n, c, h, w]` to float32 `(x / 255 - mean) / std`, per channel, in one pass over the memory."""
    scale = torch.tensor([1 / (255 * s) for s in std]).view(1, -1, 1, 1)
    shift = torch.tensor([-m / s for m, s in zip(mean, std, strict=True)]).view(1, -1, 1, 1)
    return images.float().mul_(scale).add_(shift)
