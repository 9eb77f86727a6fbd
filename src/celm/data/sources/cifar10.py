"""CIFAR-10 (Krizhevsky 2009), https://www.cs.toronto.edu/~kriz/cifar.html."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from celm.data.dataset import Dataset, Defaults, Source
from celm.data.facts import Facts, Form, Remote, parquet_form
from celm.data.files.cifar_binary import TEST, TRAIN, read_archive, read_batches
from celm.data.files.fetch import available
from celm.data.files.locate import Found
from celm.data.raw import Raw, read_parquet_raw

CLASSES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
ARCHIVE = "cifar-10-binary.tar.gz"


@dataclass(frozen=True)
class Cifar10(Source):
    """Photographs of animals and vehicles, 32x32 colour, 10 classes, 50,000 + 10,000 images."""

    augment: bool = True
    """Crop at random (padding 4) and flip while training."""

    defaults: ClassVar[Defaults] = Defaults(
        model="cnn",
        split="pls",
        rounds=200,
        lr=0.1,
        splits={"pls": {"max_samples": 2000, "min_samples": 100}},
    )
    facts: ClassVar[Facts] = Facts(
        name="cifar10",
        shape=(3, 32, 32),
        classes=10,
        licence="none stated by its makers",
        counts=((50000, 10000),),
        forms=(
            parquet_form(),
            Form("batches", {name: (name, f"cifar-10-batches-bin/{name}") for name in (*TRAIN, *TEST)}),
            Form("archive", {"archive": (ARCHIVE,)}),
        ),
        remote=(
            Remote(
                ARCHIVE,
                f"https://www.cs.toronto.edu/~kriz/{ARCHIVE}",
                170052171,
                "md5:c32a1d4ab5d03f1284b67883e8d87530",
            ),
        ),
        digests={
            ARCHIVE: ("md5:c32a1d4ab5d03f1284b67883e8d87530",),
            "train-00000-of-00001.parquet": (
                "sha256:cec5a6cdb3414ac5881c77ab50f9849123e2bbd31a2cb4e02f6bf6fa19d266fa",
            ),
            "test-00000-of-00001.parquet": (
                "sha256:9126f49033cedf2936ce385ee78efddc24a693f73f9c66b530345741d7d8926a",
            ),
        },
    )

    def load(self) -> Dataset:
        found = available(self.facts)
        raw = read(found).checked(found.folder, self.facts.classes, self.facts.shape)
        return raw.dataset(
            self.facts.name,
            CLASSES,
            mean=(0.4914, 0.4822, 0.4465),
            std=(0.2023, 0.1994, 0.2010),
            augment=self.augment,
        )


def read(found: Found) -> Raw:
    if found.kind == "parquet":
        return read_parquet_raw(found, "cifar10", channels=3)
    if found.kind == "archive":
        train, test = read_archive(found.one("archive"))
    else:
        train, test = (read_batches([found.one(name) for name in names]) for names in (TRAIN, TEST))
    return Raw(*train, *test)
