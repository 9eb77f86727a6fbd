"""The user's own images: parquet files, or one folder per class."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import Field
from torch import Tensor

from celm.base.errors import CelmError
from celm.base.files import os_errors_as_celm_error
from celm.data.client_names import check_client_names
from celm.data.dataset import Dataset, DatasetSource, Defaults, hold_out
from celm.data.files import parquet
from celm.data.files.cache import load_or_compute
from celm.data.files.class_folders import check_inside, list_class_images, read_contents
from celm.data.files.images import Channels, decode_images
from celm.data.files.locate import match_files
from celm.data.files.parts import split_parts
from celm.data.raw_images import RawImages

_Labels = list[int] | list[str]


@dataclass(frozen=True)
class _Subset:
    """Files of the training or test set, with a label for every image in them."""

    files: tuple[Path, ...]
    labels: _Labels
    class_names: tuple[str, ...] | None = None
    """Class names by class index, if the files have them."""
    client_ids: tuple[str, ...] | None = None


@dataclass(frozen=True)
class ImageFolder(DatasetSource):
    """Your own images: parquet files, or one folder per class.

    The folder contains `train*.parquet` and `test*.parquet` with columns `image` and `label`, or `train/CLASS/*.png`
    and `test/CLASS/*.png`. Without a test set, one fifth of every class is held out, the same for every run.
    """

    path: str
    """Folder of the data."""
    size: Annotated[int, Field(ge=1, le=1024)] | None = None
    """Side to which images are resized, in pixels. None: all images must have the same size."""
    grayscale: bool = False
    """Convert images to one channel instead of three."""
    owner_column: str = "client"
    """Parquet column with the client of each row, for the `natural` split."""
    mean: tuple[float, ...] | None = None
    """Mean per channel of pixels on 0 .. 1. None: that of the training images."""
    std: tuple[float, ...] | None = None
    """Standard deviation per channel. Set both `mean` and `std`, or neither."""
    augment: bool = False
    """Random crops (padding 4) and flips during training."""

    defaults: ClassVar[Defaults] = Defaults(model="mlp", rounds=100)

    @property
    def channels(self) -> Channels:
        """Channels of an image."""
        return 1 if self.grayscale else 3

    def load(self) -> Dataset:
        root = Path(self.path).expanduser()
        with os_errors_as_celm_error(root, "read"):
            if not root.is_dir():
                raise CelmError(
                    f"cannot read {root}: no such folder", "set dataset.path to the folder of your data"
                )
        parquet_files = [check_inside(root, path) for path in match_files(root, ("*.parquet", "*/*.parquet"))]
        train, test = (
            self._read_parquet(root, parquet_files) if parquet_files else self._read_class_folders(root)
        )
        class_names, encoded_labels = _encode_labels(root, train, test)
        raw, client_ids = self._decode_subsets(root, bool(parquet_files), train, test, encoded_labels)
        raw.validate(root, len(class_names))
        mean, std = self._resolve_mean_std(raw.train_images)
        return raw.to_dataset("folder", class_names, mean, std, client_ids, self.augment)

    def _read_parquet(self, root: Path, parquet_files: Sequence[Path]) -> tuple[_Subset, _Subset | None]:
        train_files, test_files = split_parts(root, parquet_files)
        train = replace(_parquet_subset(train_files), client_ids=self._read_client_ids(train_files))
        return train, _parquet_subset(test_files) if test_files else None

    def _read_class_folders(self, root: Path) -> tuple[_Subset, _Subset | None]:
        if (root / "train").is_dir():
            train = _folder_subset(list_class_images(root, check_inside(root, root / "train")))
            test = (
                list_class_images(root, check_inside(root, root / "test")) if (root / "test").is_dir() else {}
            )
            return train, _folder_subset(test) if test else None
        return _folder_subset(list_class_images(root, root)), None

    def _read_client_ids(self, files: Sequence[Path]) -> tuple[str, ...] | None:
        if any(self.owner_column not in parquet.read_schema(path).names for path in files):
            if self.owner_column == "client":
                return None
            raise CelmError(f"{self.path} has training files with no column '{self.owner_column}'")
        values = parquet.read_column(files, self.owner_column)
        return check_client_names(values, f"column '{self.owner_column}' of {files[0]}")

    def _decode_subsets(
        self,
        root: Path,
        from_parquet: bool,
        train: _Subset,
        test: _Subset | None,
        encoded_labels: tuple[Tensor, Tensor | None],
    ) -> tuple[RawImages, Sequence[str] | None]:
        """Return all images and the clients of the training images. Without a test set, a fifth is held out."""
        subsets = {"train": train, **({} if test is None else {"test": test})}

        def decode_files(files: Sequence[Path]) -> Tensor:
            if from_parquet:
                return parquet.decode_parquet_images(files, self.channels, self.size)
            return decode_images(read_contents(files), len(files), self.channels, self.size)

        images = load_or_compute(
            "folder",
            [path for part in subsets.values() for path in part.files],
            {"channels": self.channels, "size": self.size, "train": len(train.files)},
            lambda: {name: decode_files(part.files) for name, part in subsets.items()},
        )
        labels, test_labels = encoded_labels
        if test_labels is not None:
            return RawImages(images["train"], labels, images["test"], test_labels), train.client_ids
        if len(images["train"]) != len(labels):
            raise CelmError(f"{root}: {len(images['train'])} images but {len(labels)} labels")
        train_rows, test_rows = hold_out(labels.numpy())
        train_index, test_index = torch.from_numpy(train_rows), torch.from_numpy(test_rows)
        raw = RawImages(
            images["train"][train_index], labels[train_index], images["train"][test_index], labels[test_index]
        )
        return raw, None if train.client_ids is None else [train.client_ids[row] for row in train_rows]

    def _resolve_mean_std(self, images: Tensor) -> tuple[tuple[float, ...], tuple[float, ...]]:
        if self.mean is None and self.std is None:
            return _channel_statistics(images)
        if self.mean is None or self.std is None:
            raise CelmError("dataset.mean and dataset.std must be set together", "set both or neither")
        if not len(self.mean) == len(self.std) == self.channels:
            raise CelmError(f"dataset.mean and dataset.std must have {self.channels} values each")
        if not all(np.isfinite((*self.mean, *self.std))) or min(self.std) <= 0:
            raise CelmError("dataset.mean must be finite and dataset.std positive")
        return self.mean, self.std


def _parquet_subset(files: Sequence[Path]) -> _Subset:
    return _Subset(tuple(files), parquet.read_column(files, "label"), parquet.read_class_names(files[0]))


def _folder_subset(folders: dict[str, list[Path]]) -> _Subset:
    return _Subset(
        tuple(path for paths in folders.values() for path in paths),
        [name for name, paths in folders.items() for _ in paths],
    )


def _encode_labels(
    root: Path, train: _Subset, test: _Subset | None
) -> tuple[tuple[str, ...], tuple[Tensor, Tensor | None]]:
    """Return the class names, and the labels as class indices."""
    if not train.labels:
        raise CelmError(
            f"{root} has no data",
            "add parquet files with columns image and label, or folders CLASS/*.png",
        )
    label_values: Sequence[int | str] = sorted(set(train.labels))  # of one type: read_column() checks that
    names = tuple(str(label) for label in label_values)
    if train.class_names is not None and isinstance(label_values[0], int):
        names, label_values = train.class_names, range(len(train.class_names))
    if len(names) < 2:
        raise CelmError(f"{root} has only one class, '{names[0]}'; at least two are needed")
    class_index = {label: index for index, label in enumerate(label_values)}
    results = []
    for subset_name, labels in (("training", train.labels), ("test", test.labels if test else [])):
        unknown = [label for label in dict.fromkeys(labels) if label not in class_index]
        if unknown:
            raise CelmError(
                f"{root}: the {subset_name} data has a class '{unknown[0]}' that is not in the training data"
            )
        results.append(torch.tensor([class_index[label] for label in labels], dtype=torch.int64))
    return names, (results[0], results[1] if test else None)


def _channel_statistics(images: Tensor) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Return mean and standard deviation per channel on 0 .. 1, from exact counts of the 256 pixel values."""
    values = np.arange(256) / 255
    means, stds = [], []
    for channel in range(images.shape[1]):
        pixels: NDArray[np.uint8] = images[:, channel].numpy().reshape(-1)
        shares = sum(np.bincount(piece, minlength=256) for piece in np.array_split(pixels, 64)) / pixels.size
        mean = float(shares @ values)
        means.append(mean)
        # A constant channel is not scaled.
        stds.append(float(np.sqrt(shares @ (values - mean) ** 2)) or 1.0)
    return tuple(means), tuple(stds)
