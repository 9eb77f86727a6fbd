"""Fed-ISIC2019 (FLamby, Ogier du Terrail et al. 2022): dermoscopy from six real centres."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar

from pydantic import Field

from celm.data.dataset import Dataset, Defaults, Source
from celm.data.facts import Facts, parquet_form
from celm.data.files import parquet
from celm.data.files.fetch import available
from celm.data.files.locate import Found
from celm.data.raw import read_parquet_raw

CLASSES = ("MEL", "NV", "BCC", "AK", "BKL", "DF", "VASC", "SCC")


@dataclass(frozen=True)
class FedIsic(Source):
    """Skin lesions from 6 real centres (Fed-ISIC2019), colour, 8 classes, 18,597 + 4,650 images."""

    size: Annotated[int, Field(ge=8, le=512)] = 84
    """Images are resized to size x size."""
    augment: bool = False
    """Crop at random (padding 4) and flip while training."""

    defaults: ClassVar[Defaults] = Defaults(model="cnn", split="natural", rounds=200, lr=0.01)
    facts: ClassVar[Facts] = Facts(
        name="fedisic",
        shape=(3, 84, 84),
        classes=8,
        licence="CC BY-NC 4.0",
        # The second pair is the copy that lacks 32 images of centre 0, class AK.
        counts=((18597, 4650), (18568, 4647)),
        forms=(parquet_form(),),
        hub="flwrlabs/fed-isic2019",
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
        found = available(self.facts)
        raw = read_parquet_raw(found, self.facts.name, channels=3, size=self.size)
        raw.checked(found.folder, self.facts.classes, (3, self.size, self.size))
        return raw.dataset(
            self.facts.name,
            CLASSES,
            mean=(0.485, 0.456, 0.406),
            std=(0.229, 0.224, 0.225),
            owners=owners(found),
            augment=self.augment,
        )


def owners(found: Found) -> tuple[str, ...]:
    """The centre of each training image."""
    return tuple(f"center-{center}" for center in parquet.column(found.files["train"], "center"))
