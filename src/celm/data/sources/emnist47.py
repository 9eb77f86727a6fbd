"""Another selection of EMNIST images with the same 47 classes, for use without the official files.

It is not EMNIST Balanced. It has real images of EMNIST ByMerge, ByClass and Balanced, upright, with disjoint training
and test sets. Results measured on it are named `emnist47`, never `emnist`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar

from pydantic import Field

from celm.data.dataset import Dataset, DatasetSource, Defaults
from celm.data.dataset_info import DatasetInfo, parquet_layout
from celm.data.files.ensure import ensure_files
from celm.data.raw_images import read_parquet_images
from celm.data.sources.emnist import EMNIST_CLASSES, Emnist


@dataclass(frozen=True)
class Emnist47(DatasetSource):
    """Handwritten characters, another EMNIST selection, 47 classes.

    There are 94,545 training and 9,400 test images, 28x28 grey.
    """

    padding: Annotated[int, Field(ge=0, le=64)] = 2
    """Black margin on each side in pixels; 2 gives the 32x32 of the paper's authors."""

    defaults: ClassVar[Defaults] = Emnist.defaults
    info: ClassVar[DatasetInfo] = DatasetInfo(
        name="emnist47",
        shape=(1, 28, 28),
        classes=47,
        licence="none stated by its makers",
        counts=((94545, 9400),),
        layouts=(parquet_layout(),),
        digests={
            "train-00000-of-00001.parquet": (
                "sha256:42e807014078fc4aadc8e4ce0099286b5de587c3c33009036e0bee7227503a2a",
            ),
            "test-00000-of-00001.parquet": (
                "sha256:8444932136b2fa8eff67195ca7f8bf75e7fe11b0a58f26914a323e7bb17b969a",
            ),
        },
    )

    def load(self) -> Dataset:
        located = ensure_files(self.info)
        raw = read_parquet_images(located, self.info.name, channels=1)
        raw = raw.validate(located.folder, self.info.classes, self.info.shape).pad(self.padding)
        return raw.to_dataset(self.info.name, EMNIST_CLASSES, mean=(0.1307,), std=(0.3081,))
