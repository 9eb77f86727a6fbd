"""Decoded images before normalisation: checks, padding, and conversion to a `Dataset`."""

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
from celm.data.dataset import Dataset
from celm.data.files import parquet
from celm.data.files.cache import load_or_compute
from celm.data.files.images import Channels
from celm.data.files.locate import LocatedFiles


@dataclass(frozen=True)
class RawImages:
    """Training and test images uint8 `[n, c, h, w]` with labels int64 `[n]`."""

    train_images: Tensor
    train_labels: Tensor
    test_images: Tensor
    test_labels: Tensor

    def validate(self, folder: Path, classes: int, shape: tuple[int, ...] | None = None) -> RawImages:
        """Return itself, or raise an error if images and labels do not match each other, `classes` or `shape`."""
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
                actual = " x ".join(map(str, images.shape[1:]))
                raise CelmError(f"{folder}: {part} images are {actual}, not {' x '.join(map(str, expected))}")
            low, high = int(labels.min()), int(labels.max())
            if low < 0 or high >= classes:
                invalid_label = low if low < 0 else high
                raise CelmError(f"{folder}: a {part} label is {invalid_label}, outside 0 to {classes - 1}")
        return self

    def transpose(self) -> RawImages:
        """Return the images with rows and columns exchanged."""
        return replace(
            self,
            train_images=self.train_images.transpose(2, 3).contiguous(),
            test_images=self.test_images.transpose(2, 3).contiguous(),
        )

    def pad(self, padding: int) -> RawImages:
        """Return the images with a black margin on all sides."""
        margin = (padding,) * 4
        return replace(
            self, train_images=pad(self.train_images, margin), test_images=pad(self.test_images, margin)
        )

    def to_dataset(
        self,
        name: str,
        classes: Sequence[str],
        mean: tuple[float, ...],
        std: tuple[float, ...],
        client_ids: Sequence[str] | None = None,
        augment: bool = False,
    ) -> Dataset:
        """Return the normalised dataset; with `augment`, training crops and flips its images."""
        return Dataset(
            name=name,
            train_inputs=_normalise(self.train_images, mean, std),
            train_labels=self.train_labels,
            test_inputs=_normalise(self.test_images, mean, std),
            test_labels=self.test_labels,
            classes=tuple(classes),
            client_ids=None if client_ids is None else tuple(client_ids),
            pad_value=-torch.tensor(mean) / torch.tensor(std) if augment else None,
        )


def _normalise(images: Tensor, mean: tuple[float, ...], std: tuple[float, ...]) -> Tensor:
    """Return `(x / 255 - mean) / std` per channel as float32, in one pass over the memory."""
    scale = torch.tensor([1 / (255 * s) for s in std]).view(1, -1, 1, 1)
    shift = torch.tensor([-m / s for m, s in zip(mean, std, strict=True)]).view(1, -1, 1, 1)
    return images.float().mul_(scale).add_(shift)


def read_idx_images(read: Callable[[str, int], NDArray[np.uint8]]) -> RawImages:
    """Return the images of four idx files; `read` takes the name of a part and its number of dimensions."""

    def images(part: str) -> Tensor:
        return torch.from_numpy(read(part, 3)).unsqueeze(1)

    def labels(part: str) -> Tensor:
        return torch.from_numpy(read(part, 1).astype(np.int64))

    return RawImages(
        images("train_images"), labels("train_labels"), images("test_images"), labels("test_labels")
    )


def read_parquet_images(
    located: LocatedFiles, name: str, channels: Channels, size: int | None = None
) -> RawImages:
    """Return the images of parquet files with integer labels; decoded images are cached."""
    train, test = located.files["train"], located.files["test"]
    images = load_or_compute(
        name,
        [*train, *test],
        {"channels": channels, "size": size},
        lambda: {
            "train": parquet.decode_parquet_images(train, channels, size),
            "test": parquet.decode_parquet_images(test, channels, size),
        },
    )
    return RawImages(images["train"], _read_integer_labels(train), images["test"], _read_integer_labels(test))


def _read_integer_labels(paths: Sequence[Path]) -> Tensor:
    values = parquet.read_column(paths, "label")
    if any(isinstance(value, str) for value in values[:1]):
        raise CelmError(f"column 'label' of {paths[0]} must contain integers, not text")
    try:
        return torch.tensor(values, dtype=torch.int64)
    except (RuntimeError, OverflowError, ValueError) as error:
        raise CelmError(f"column 'label' of {paths[0]} has values that are not class indices") from error
