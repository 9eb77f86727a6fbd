"""The user's own data: parquet files, or images by class folder."""

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
from celm.base.files import explained
from celm.data.dataset import Dataset, Defaults, Source
from celm.data.files import parquet
from celm.data.files.cache import cached
from celm.data.files.class_folders import class_folders, contents, inside
from celm.data.files.images import Channels, decode_all
from celm.data.files.locate import matches
from celm.data.holdout import hold_out
from celm.data.raw import Raw

Label = int | str
Labels = list[int] | list[str]


@dataclass(frozen=True)
class Part:
    """Files of the training or of the test part, with a label for every image in them."""

    files: tuple[Path, ...]
    labels: Labels
    names: tuple[str, ...] | None = None
    """Class names by number, where the files have them."""
    owners: tuple[str, ...] | None = None


@dataclass(frozen=True)
class Folder(Source):
    """Your own images: a folder of parquet files, or of images by class folder.

    `train*.parquet` and `test*.parquet` with columns `image` and `label`, or `train/CLASS/*.png` and
    `test/CLASS/*.png`. Without a test part, one fifth of every class is held out, the same for every run.
    """

    path: str
    """The folder."""
    size: Annotated[int, Field(ge=1, le=1024)] | None = None
    """Resize all images to size x size; without it they must all be of one size."""
    grayscale: bool = False
    """One channel instead of three."""
    owner_column: str = "client"
    """Parquet column that says which client holds a row: the `natural` split."""
    mean: tuple[float, ...] | None = None
    """Per channel, of pixels on 0 .. 1; by default that of the training images."""
    std: tuple[float, ...] | None = None
    """See `mean`; both are given, or neither."""
    augment: bool = False
    """Crop at random (padding 4) and flip while training."""

    defaults: ClassVar[Defaults] = Defaults(model="mlp", rounds=100)

    @property
    def channels(self) -> Channels:
        return 1 if self.grayscale else 3

    def load(self) -> Dataset:
        root = Path(self.path).expanduser()
        with explained(root, "read"):
            if not root.is_dir():
                raise CelmError(
                    f"cannot read {root}: no such folder", "set dataset.path to the folder of your data"
                )
        tables = [inside(root, path) for path in matches(root, ("*.parquet", "*/*.parquet"))]
        train, test = self.from_tables(root, tables) if tables else self.from_folders(root)
        names, numbers = numbered(root, train, test)
        raw, owners = self.decoded(root, bool(tables), train, test, numbers)
        raw.checked(root, len(names))
        mean, std = self.scale(raw.train_images)
        return raw.dataset("folder", names, mean, std, owners, self.augment)

    def from_tables(self, root: Path, tables: Sequence[Path]) -> tuple[Part, Part | None]:
        tests = [path for path in tables if path.name.startswith("test")]
        trains = [path for path in tables if path.name.startswith("train")]
        if not trains:
            trains = [path for path in tables if path not in tests]
        if not trains:
            raise CelmError(f"{root} has test files but no train*.parquet")
        for files in (trains, tests):
            if (lost := parquet.missing_shard(files)) is not None:
                raise CelmError(f"{root} is incomplete: the file {lost} is missing")
        train = replace(table(trains), owners=self.owners(trains))
        return train, table(tests) if tests else None

    def from_folders(self, root: Path) -> tuple[Part, Part | None]:
        if (root / "train").is_dir():
            train = part(class_folders(root, inside(root, root / "train")))
            test = class_folders(root, inside(root, root / "test")) if (root / "test").is_dir() else {}
            return train, part(test) if test else None
        return part(class_folders(root, root)), None

    def owners(self, files: Sequence[Path]) -> tuple[str, ...] | None:
        if any(self.owner_column not in parquet.schema(path).names for path in files):
            if self.owner_column == "client":
                return None
            raise CelmError(f"no column '{self.owner_column}' in every training file of {self.path}")
        values = parquet.column(files, self.owner_column)
        names = tuple(f"client-{value}" if isinstance(value, int) else value.strip() for value in values)
        for name in set(names):
            # They become the names of clients in tables, reports and logs.
            if not 0 < len(name) <= 100 or not name.isprintable():
                raise CelmError(
                    f"column '{self.owner_column}' of {files[0]} has an unusable name {name[:100]!r}"
                )
        return names

    def decoded(
        self, root: Path, tables: bool, train: Part, test: Part | None, numbers: tuple[Tensor, Tensor | None]
    ) -> tuple[Raw, Sequence[str] | None]:
        """All images, and who owns those to train on; a fifth is held out where there is no test part."""
        parts = {"train": train, **({} if test is None else {"test": test})}

        def decode(files: Sequence[Path]) -> Tensor:
            if tables:
                return parquet.decoded(files, self.channels, self.size)
            return decode_all(contents(files), len(files), self.channels, self.size)

        images = cached(
            "folder",
            [path for part in parts.values() for path in part.files],
            {"channels": self.channels, "size": self.size, "train": len(train.files)},
            lambda: {name: decode(part.files) for name, part in parts.items()},
        )
        labels, test_labels = numbers
        if test_labels is not None:
            return Raw(images["train"], labels, images["test"], test_labels), train.owners
        if len(images["train"]) != len(labels):
            raise CelmError(f"{root}: {len(images['train'])} images but {len(labels)} labels")
        kept, held = hold_out(labels.numpy())
        rows, others = torch.from_numpy(kept), torch.from_numpy(held)
        raw = Raw(images["train"][rows], labels[rows], images["train"][others], labels[others])
        return raw, None if train.owners is None else [train.owners[row] for row in kept]

    def scale(self, images: Tensor) -> tuple[tuple[float, ...], tuple[float, ...]]:
        if self.mean is None and self.std is None:
            return measured(images)
        if self.mean is None or self.std is None:
            raise CelmError("dataset.mean and dataset.std go together: give both or neither")
        if not len(self.mean) == len(self.std) == self.channels:
            raise CelmError(f"dataset.mean and dataset.std must have {self.channels} values each")
        if not all(np.isfinite((*self.mean, *self.std))) or min(self.std) <= 0:
            raise CelmError("dataset.mean must be finite and dataset.std positive")
        return self.mean, self.std


def table(files: Sequence[Path]) -> Part:
    return Part(tuple(files), parquet.column(files, "label"), parquet.class_names(files[0]))


def part(folders: dict[str, list[Path]]) -> Part:
    return Part(
        tuple(path for paths in folders.values() for path in paths),
        [name for name, paths in folders.items() for _ in paths],
    )


def numbered(
    root: Path, train: Part, test: Part | None
) -> tuple[tuple[str, ...], tuple[Tensor, Tensor | None]]:
    """Class names, and the labels as class numbers."""
    if not train.labels:
        raise CelmError(
            f"{root} holds no data",
            "parquet files with columns image and label, or folders CLASS/*.png, are expected",
        )
    known: Sequence[Label] = sorted(set(train.labels))  # of one kind: column() checks
    names = tuple(str(label) for label in known)
    if train.names is not None and isinstance(known[0], int):
        names, known = train.names, range(len(train.names))
    if len(names) < 2:
        raise CelmError(f"{root} has one class only, '{names[0]}'; two or more are needed")
    number = {label: index for index, label in enumerate(known)}
    results = []
    for which, labels in (("training", train.labels), ("test", test.labels if test else [])):
        strange = [label for label in dict.fromkeys(labels) if label not in number]
        if strange:
            raise CelmError(
                f"{root}: the {which} data has a class '{strange[0]}' that the training data does not know"
            )
        results.append(torch.tensor([number[label] for label in labels], dtype=torch.int64))
    return names, (results[0], results[1] if test else None)


def measured(images: Tensor) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Mean and standard deviation per channel on 0 .. 1, from exact counts of the 256 pixel values."""
    values = np.arange(256) / 255
    means, stds = [], []
    for channel in range(images.shape[1]):
        pixels: NDArray[np.uint8] = images[:, channel].numpy().reshape(-1)
        shares = sum(np.bincount(piece, minlength=256) for piece in np.array_split(pixels, 64)) / pixels.size
        mean = float(shares @ values)
        means.append(mean)
        # A channel that never changes is left as it is.
        stds.append(float(np.sqrt(shares @ (values - mean) ** 2)) or 1.0)
    return tuple(means), tuple(stds)
