"""SVHN, cropped digits (Netzer et al. 2011), http://ufldl.stanford.edu/housenumbers. The set `extra` is not used."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from celm.data.dataset import Dataset, DatasetSource, Defaults
from celm.data.dataset_info import DatasetInfo, FileLayout, RemoteFile
from celm.data.files.ensure import ensure_files
from celm.data.files.svhn_mat import read_svhn
from celm.data.raw_images import RawImages

_BASE_URL = "http://ufldl.stanford.edu/housenumbers"
_OFFICIAL_FILES = (
    (
        "train_32x32.mat",
        182040794,
        "sha256:435e94d69a87fde4fd4d7f3dd208dfc32cb6ae8af2240d066de1df7508d083b8",
    ),
    (
        "test_32x32.mat",
        64275384,
        "sha256:cdce80dfb2a2c4c6160906d0bd7c68ec5a99d7ca4831afa54f09182025b6a75b",
    ),
)


@dataclass(frozen=True)
class Svhn(DatasetSource):
    """Digits of house numbers (SVHN), 32x32 colour, 10 classes.

    There are 73,257 training and 26,032 test images.
    """

    defaults: ClassVar[Defaults] = Defaults(model="cnn", split="pls", rounds=200, lr=0.1)
    info: ClassVar[DatasetInfo] = DatasetInfo(
        name="svhn",
        shape=(3, 32, 32),
        classes=10,
        licence="non-commercial use only",
        counts=((73257, 26032),),
        layouts=(FileLayout("mat", {"train": ("train_32x32.mat",), "test": ("test_32x32.mat",)}),),
        remote_files=tuple(
            RemoteFile(name, f"{_BASE_URL}/{name}", size, digest) for name, size, digest in _OFFICIAL_FILES
        ),
        digests={name: (digest,) for name, _, digest in _OFFICIAL_FILES},
    )

    def load(self) -> Dataset:
        located = ensure_files(self.info)
        train, test = (read_svhn(located.path(part)) for part in ("train", "test"))
        raw = RawImages(*train, *test).validate(located.folder, self.info.classes, self.info.shape)
        return raw.to_dataset(
            self.info.name,
            tuple("0123456789"),
            mean=(0.4377, 0.4438, 0.4728),
            std=(0.198, 0.201, 0.197),
        )
