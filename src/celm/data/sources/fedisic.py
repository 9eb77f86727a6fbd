"""Fed-ISIC2019 (FLamby, Ogier du Terrail et al. 2022): dermoscopy from six real centres."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar

from pydantic import Field

from celm.data.dataset import Dataset, DatasetSource, Defaults
from celm.data.dataset_info import DatasetInfo, parquet_layout
from celm.data.files import parquet
from celm.data.files.ensure import ensure_files
from celm.data.files.locate import LocatedFiles
from celm.data.raw_images import read_parquet_images

FEDISIC_CLASSES = ("MEL", "NV", "BCC", "AK", "BKL", "DF", "VASC", "SCC")


@dataclass(frozen=True)
class FedIsic(DatasetSource):
    """Skin lesions from 6 centres (Fed-ISIC2019), colour, 8 classes.

    There are 18,597 training and 4,650 test images.
    """

    size: Annotated[int, Field(ge=8, le=512)] = 84
    """Side to which images are resized, in pixels."""
    augment: bool = False
    """Random crops (padding 4) and flips during training."""

    defaults: ClassVar[Defaults] = Defaults(model="cnn", split="natural", rounds=200, lr=0.01)
    info: ClassVar[DatasetInfo] = DatasetInfo(
        name="fedisic",
        shape=(3, 84, 84),
        classes=8,
        licence="CC BY-NC 4.0",
        # The second pair is of a copy that lacks 32 images of centre 0, class AK.
        counts=((18597, 4650), (18568, 4647)),
        layouts=(parquet_layout(),),
        hf_repo="flwrlabs/fed-isic2019",
        digests={
            "train-00000-of-00001.parquet": (
                "sha256:02cab84c6e9295394e2664499af3275a6b5ff42b74b2e189fa1b571c8148e86f",
            ),
            "test-00000-of-00001.parquet": (
                "sha256:8a80fc6b79fe3941a56303c0aba21eb6b0cff1bb9b62c390b02e74a4df32311e",
            ),
        },
    )

    def load(self) -> Dataset:
        located = ensure_files(self.info)
        raw = read_parquet_images(located, self.info.name, channels=3, size=self.size)
        raw.validate(located.folder, self.info.classes, (3, self.size, self.size))
        return raw.to_dataset(
            self.info.name,
            FEDISIC_CLASSES,
            mean=(0.485, 0.456, 0.406),
            std=(0.229, 0.224, 0.225),
            client_ids=read_centers(located),
            augment=self.augment,
        )


def read_centers(located: LocatedFiles) -> tuple[str, ...]:
    """Return the centre of each training image."""
    return tuple(f"center-{center}" for center in parquet.read_column(located.files["train"], "center"))
