"""CIFAR-10 (Krizhevsky 2009), https://www.cs.toronto.edu/~kriz/cifar.html."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from celm.data.dataset import Dataset, DatasetSource, Defaults
from celm.data.dataset_info import DatasetInfo, FileLayout, RemoteFile, parquet_layout
from celm.data.files.cifar_binary import CIFAR10, read_archive, read_batches
from celm.data.files.ensure import ensure_files
from celm.data.files.locate import LocatedFiles
from celm.data.raw_images import RawImages, read_parquet_images

_CIFAR10_CLASSES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
_CIFAR10_ARCHIVE = "cifar-10-binary.tar.gz"


@dataclass(frozen=True)
class Cifar10(DatasetSource):
    """Photographs of animals and vehicles, 32x32 colour, 10 classes.

    There are 50,000 training and 10,000 test images.
    """

    augment: bool = True
    """Random crops (padding 4) and flips during training."""

    defaults: ClassVar[Defaults] = Defaults(
        model="cnn",
        split="pls",
        rounds=200,
        lr=0.1,
        splits={"pls": {"max_samples": 2000, "min_samples": 100}},
    )
    info: ClassVar[DatasetInfo] = DatasetInfo(
        name="cifar10",
        shape=(3, 32, 32),
        classes=10,
        licence="none stated by its makers",
        counts=((50000, 10000),),
        layouts=(
            parquet_layout(),
            FileLayout(
                "batches",
                {name: (name, f"cifar-10-batches-bin/{name}") for name in CIFAR10.files},
            ),
            FileLayout("archive", {"archive": (_CIFAR10_ARCHIVE,)}),
        ),
        remote_files=(
            RemoteFile(
                _CIFAR10_ARCHIVE,
                f"https://www.cs.toronto.edu/~kriz/{_CIFAR10_ARCHIVE}",
                170052171,
                "sha256:c4a38c50a1bc5f3a1c5537f2155ab9d68f9f25eb1ed8d9ddda3db29a59bca1dd",
            ),
        ),
        digests={
            _CIFAR10_ARCHIVE: ("sha256:c4a38c50a1bc5f3a1c5537f2155ab9d68f9f25eb1ed8d9ddda3db29a59bca1dd",),
            "train-00000-of-00001.parquet": (
                "sha256:cec5a6cdb3414ac5881c77ab50f9849123e2bbd31a2cb4e02f6bf6fa19d266fa",
            ),
            "test-00000-of-00001.parquet": (
                "sha256:9126f49033cedf2936ce385ee78efddc24a693f73f9c66b530345741d7d8926a",
            ),
        },
    )

    def load(self) -> Dataset:
        located = ensure_files(self.info)
        raw = _read_cifar10(located).validate(located.folder, self.info.classes, self.info.shape)
        return raw.to_dataset(
            self.info.name,
            _CIFAR10_CLASSES,
            mean=(0.4914, 0.4822, 0.4465),
            std=(0.2023, 0.1994, 0.2010),
            augment=self.augment,
        )


def _read_cifar10(located: LocatedFiles) -> RawImages:
    if located.kind == "parquet":
        return read_parquet_images(located, "cifar10", channels=3)
    if located.kind == "archive":
        train, test = read_archive(CIFAR10, located.path("archive"))
    else:
        train, test = (
            read_batches(CIFAR10, [located.path(name) for name in names])
            for names in (CIFAR10.train_files, CIFAR10.test_files)
        )
    return RawImages(*train, *test)
