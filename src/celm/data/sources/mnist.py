"""MNIST (LeCun, Cortes, Burges 1998), http://yann.lecun.com/exdb/mnist/; the files are served by CVDF."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from celm.data.dataset import Dataset, DatasetSource, Defaults
from celm.data.dataset_info import DatasetInfo, RemoteFile, mnist_layout, parquet_layout
from celm.data.files.ensure import ensure_files
from celm.data.files.idx import read_idx
from celm.data.raw_images import read_idx_images, read_parquet_images

_BASE_URL = "https://storage.googleapis.com/cvdf-datasets/mnist"
# Name, size and SHA-256.
_OFFICIAL_FILES = (
    (
        "train-images-idx3-ubyte.gz",
        9912422,
        "440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609",
    ),
    (
        "train-labels-idx1-ubyte.gz",
        28881,
        "3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c",
    ),
    (
        "t10k-images-idx3-ubyte.gz",
        1648877,
        "8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6",
    ),
    (
        "t10k-labels-idx1-ubyte.gz",
        4542,
        "f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6",
    ),
)


@dataclass(frozen=True)
class Mnist(DatasetSource):
    """Handwritten digits (MNIST), 28x28 grey, 10 classes.

    There are 60,000 training and 10,000 test images.
    """

    defaults: ClassVar[Defaults] = Defaults(model="mlp", split="pls", rounds=100, lr=0.1)
    info: ClassVar[DatasetInfo] = DatasetInfo(
        name="mnist",
        shape=(1, 28, 28),
        classes=10,
        licence="none stated by its makers",
        counts=((60000, 10000),),
        layouts=(mnist_layout(), parquet_layout()),
        remote_files=tuple(
            RemoteFile(name, f"{_BASE_URL}/{name}", size, f"sha256:{sha}")
            for name, size, sha in _OFFICIAL_FILES
        ),
        digests={name: (f"sha256:{sha}",) for name, _, sha in _OFFICIAL_FILES},
    )

    def load(self) -> Dataset:
        located = ensure_files(self.info)
        if located.kind == "idx":
            raw = read_idx_images(lambda part, rank: read_idx(located.path(part), rank))
        else:
            raw = read_parquet_images(located, self.info.name, channels=1)
        raw.validate(located.folder, self.info.classes, self.info.shape)
        return raw.to_dataset(self.info.name, tuple("0123456789"), mean=(0.1307,), std=(0.3081,))
