"""Decoded but not yet normalised images, and what all sources do with them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import pad

from celm.base.errors import CelmError
from celm.data.dataset import Dataset, normalised
from celm.data.files import parquet
from celm.data.files.cache import cached
from celm.data.files.images import Channels
from celm.data.files.locate import Found


@dataclass(frozen=True)
class Raw:
    """Images uint8 `[n, c, h, w]`, labels int64 `[n]`."""

    train_images: Tensor
    train_labels: Tensor
    test_images: Tensor
    test_labels: Tensor

    def checked(self, folder: Path, classes: int, shape: tuple[int, ...] | None = None) -> Raw:
        """Itself, if the two parts fit together and are what the dataset is known to be."""
        expected = tuple(self.train_images.shape[1:]) if shape is None else shape
        for part, images, labels in (
            ("training", self.train_images, self.train_labels),
            ("test", self.test_images, self.test_labels),
        ):
            if len(images) != len(labels):
                raise CelmError(f"{folder}: {len(images)} {part} images but {len(labels)} labels")
            if len(images) == 0:
                raise CelmError(f"{folder}: there are no {part} images")
            if tuple(images.shape[1:]) != expected:
                found = " x ".join(map(str, images.shape[1:]))
                raise CelmError(f"{folder}: {part} images are {found}, not {' x '.join(map(str, expected))}")
            low, high = int(labels.min()), int(labels.max())
            if low < 0 or high >= classes:
                wrong = low if low < 0 else high
                raise CelmError(f"{folder}: a {part} label is {wrong}, outside 0 to {classes - 1}")
        return self

    def upright(self) -> Raw:
        """Rows and columns exchanged: the official EMNIST files are transposed."""
        return replace(
            self,
            train_images=self.train_images.transpose(2, 3).contiguous(),
            test_images=self.test_images.transpose(2, 3).contiguous(),
        )

    def padded(self, padding: int) -> Raw:
        """With a black margin on all sides."""
        margin = (padding,) * 4
        return replace(
            self, train_images=pad(self.train_images, margin), test_images=pad(self.test_images, margin)
        )

    def dataset(
        self,
        name: str,
        classes: Sequence[str],
        mean: tuple[float, ...],
        std: tuple[float, ...],
        owners: Sequence[str] | None = None,
        augment: bool = False,
    ) -> Dataset:
        """Normalised; `augment` makes training crop and flip."""
        return Dataset(
            name=name,
            train_inputs=normalised(self.train_images, mean, std),
            train_labels=self.train_labels,
            test_inputs=normalised(self.test_images, mean, std),
            test_labels=self.test_labels,
            classes=tuple(classes),
            owners=None if owners is None else tuple(owners),
            fill=-torch.tensor(mean) / torch.tensor(std) if augment else None,
        )


def read_idx_raw(read: Callable[[str, int], NDArray[np.uint8]]) -> Raw:
    """From four idx files; `read` is given the name of a part and the number of its dimensions."""

    def images(part: str) -> Tensor:
        return torch.from_numpy(read(part, 3)).unsqueeze(1)

    def labels(part: str) -> Tensor:
        return torch.from_numpy(read(part, 1).astype(np.int64))

    return Raw(images("train_images"), labels("train_labels"), images("test_images"), labels("test_labels"))


def read_parquet_raw(found: Found, name: str, channels: Channels, size: int | None = None) -> Raw:
    """From parquet with whole-number labels; the decoded images are kept in the cache."""
    train, test = found.files["train"], found.files["test"]
    images = cached(
        name,
        [*train, *test],
        {"channels": channels, "size": size},
        lambda: {
            "train": parquet.decoded(train, channels, size),
            "test": parquet.decoded(test, channels, size),
        },
    )
    return Raw(images["train"], whole_numbers(train), images["test"], whole_numbers(test))


def whole_numbers(paths: Sequence[Path]) -> Tensor:
    values = parquet.column(paths, "label")
    if any(isinstance(value, str) for value in values[:1]):
        raise CelmError(f"column 'label' of {paths[0]} must hold whole numbers, not text")
    try:
        return torch.tensor(values, dtype=torch.int64)
    except (RuntimeError, OverflowError, ValueError) as error:
        raise CelmError(f"column 'label' of {paths[0]} has values that are no class numbers") from error
