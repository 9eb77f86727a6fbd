"""A dataset in memory, the base class of its sources, and a hold-out for data without a test set."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from celm.base.registry import Configurable


@dataclass(frozen=True)
class Dataset:
    """A dataset in memory, decoded and normalised once; training only gathers rows.

    Inputs are float32 `[n, *shape]`, or token numbers int64 `[n, tokens]`. Labels are int64 `[n]`.
    """

    name: str
    train_inputs: Tensor
    train_labels: Tensor
    test_inputs: Tensor
    test_labels: Tensor
    classes: tuple[str, ...]
    client_ids: tuple[str, ...] | None = None
    """The client of each training sample, for the natural split; None if the data has none."""
    pad_value: Tensor | None = None
    """`[channels]` value of a black pixel after normalisation. None: training does not crop and flip."""

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of one input."""
        return tuple(self.train_inputs.shape[1:])

    def head_per_class(self, count: int) -> Dataset:
        """Return a dataset with the first `count` training samples of each class, in order, and the same test set."""
        rows_by_class = [
            (self.train_labels == k).nonzero().view(-1)[:count] for k in range(len(self.classes))
        ]
        rows = torch.cat(rows_by_class).sort().values
        client_ids = None if self.client_ids is None else tuple(self.client_ids[row] for row in rows.tolist())
        return replace(
            self,
            train_inputs=self.train_inputs[rows],
            train_labels=self.train_labels[rows],
            client_ids=client_ids,
        )


@dataclass(frozen=True)
class Defaults:
    """Settings that depend on the dataset, used if the experiment does not set them."""

    model: str = "mlp"
    split: str = "pls"
    split_options: Mapping[str, str] = field(default_factory=dict)
    """Settings of the default split, for experiments that name no split."""
    min_clients: int = 1
    """Number of clients that the default split needs; with fewer, an experiment gets `iid`."""
    rounds: int = 100
    lr: float = 0.1
    splits: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    """Split name to settings of that split for this dataset."""


@dataclass(frozen=True)
class DatasetSource(Configurable, ABC):
    """A dataset that can be loaded. A subclass is a frozen dataclass; its fields are settings (`dataset.*`)."""

    defaults: ClassVar[Defaults] = Defaults()

    @abstractmethod
    def load(self) -> Dataset:
        """Read, check and normalise the data."""


def hold_out(labels: NDArray[np.int64], fraction: float = 0.2) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return training rows and test rows of data without a test set, in file order, the same for every run and seed.

    Each class gives `fraction` of its samples, rounded, to the test set and keeps at least one. NumPy's legacy
    generator is used because its stream never changes; scikit-learn's splitters do not promise that.
    """
    rng = np.random.RandomState(0)
    is_test = np.zeros(len(labels), dtype=bool)
    for label in np.unique(labels):
        rows = rng.permutation(np.flatnonzero(labels == label))
        num_test = max(1, round(fraction * len(rows)))
        is_test[rows[: min(num_test, len(rows) - 1)]] = True
    return np.flatnonzero(~is_test), np.flatnonzero(is_test)
