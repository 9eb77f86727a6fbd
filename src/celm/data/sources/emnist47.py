"""Another split of EMNIST's 47 classes, for where the official files cannot be had; not EMNIST Balanced.

Real images of EMNIST ByMerge, ByClass and Balanced, upright, with train and test disjoint. Figures
measured on it are named `emnist47`, never `emnist`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar

from pydantic import Field

from celm.data.dataset import Dataset, Defaults, Source
from celm.data.facts import Facts, parquet_form
from celm.data.files.fetch import available
from celm.data.raw import read_parquet_raw
from celm.data.sources.emnist import CLASSES, Emnist


@dataclass(frozen=True)
class Emnist47(Source):
    """Handwritten characters (own split of EMNIST), 28x28 grey, 47 classes, 94,545 + 9,400 images."""

    padding: Annotated[int, Field(ge=0, le=64)] = 2
    """Black margin on each side; 2 gives the 32x32 of the paper's authors."""

    defaults: ClassVar[Defaults] = Emnist.defaults
    facts: ClassVar[Facts] = Facts(
        name="emnist47",
        shape=(1, 28, 28),
        classes=47,
        licence="none stated by its makers",
        counts=((94545, 9400),),
        forms=(parquet_form(),),
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
        found = available(self.facts)
        raw = read_parquet_raw(found, self.facts.name, channels=1)
        raw = raw.checked(found.folder, self.facts.classes, self.facts.shape).padded(self.padding)
        return raw.dataset(self.facts.name, CLASSES, mean=(0.1307,), std=(0.3081,))
