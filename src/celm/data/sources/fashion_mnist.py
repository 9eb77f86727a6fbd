"""FashionMNIST (Xiao, Rasul, Vollgraf 2017), https://github.com/zalandoresearch/fashion-mnist."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from celm.data.dataset import Dataset, Defaults, Source
from celm.data.facts import Facts, Form, Remote, either, parquet_form
from celm.data.files.fetch import available
from celm.data.files.idx import read_idx
from celm.data.raw import read_idx_raw, read_parquet_raw

CLASSES = (
    "T-shirt/top",
    "Trouser",
    "Pullover",
    "Dress",
    "Coat",
    "Sandal",
    "Shirt",
    "Sneaker",
    "Bag",
    "Ankle boot",
)
HOME = "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com"
# Name, bytes and SHA-256 of the official .gz (whose MD5 the makers publish), SHA-256 of its content.
# Debian ships the same content compressed without a name in the header, hence the last column.
OFFICIAL = (
    (
        "train-images-idx3-ubyte.gz",
        26421880,
        "3aede38d61863908ad78613f6a32ed271626dd12800ba2636569512369268a84",
        "c59f468a2f672dc815687fe0f83887768d799fd8a3f3276145d20f83aa44d888",
    ),
    (
        "train-labels-idx1-ubyte.gz",
        29515,
        "a04f17134ac03560a47e3764e11b92fc97de4d1bfaf8ba1a3aa29af54cc90845",
        "bad3541b69d912435c50bb6ba87bec294ff4f6a2e1246121d8633921760443d9",
    ),
    (
        "t10k-images-idx3-ubyte.gz",
        4422102,
        "346e55b948d973a97e58d2351dde16a484bd415d4595297633bb08f03db6a073",
        "5b4141f0afbad91edebe8549f8fcffe087ea10ca49f1dbef5c9a5cd8815ce37b",
    ),
    (
        "t10k-labels-idx1-ubyte.gz",
        5148,
        "67da17c76eaffca5446c3361aaab5c3cd6d1c2608764d35dfb1850b086bf8dd5",
        "0402a96d92fd2663957122ceb108a494c5af83dab82d92729df917d7dec38c34",
    ),
)


@dataclass(frozen=True)
class FashionMnist(Source):
    """Articles of clothing, 28x28 grey, 10 classes, 60,000 + 10,000 images."""

    defaults: ClassVar[Defaults] = Defaults(model="mlp", split="pls", rounds=100, lr=0.1)
    facts: ClassVar[Facts] = Facts(
        name="fashion_mnist",
        shape=(1, 28, 28),
        classes=10,
        licence="MIT",
        counts=((60000, 10000),),
        forms=(
            Form(
                "idx",
                {
                    "train_images": either("train-images-idx3-ubyte"),
                    "train_labels": either("train-labels-idx1-ubyte"),
                    "test_images": either("t10k-images-idx3-ubyte"),
                    "test_labels": either("t10k-labels-idx1-ubyte"),
                },
            ),
            parquet_form(),
        ),
        remote=tuple(
            Remote(name, f"{HOME}/{name}", size, f"sha256:{sha}") for name, size, sha, _ in OFFICIAL
        ),
        package="fashion-mnist",
        digests={
            key: (f"content:{content}",)
            for name, _, _, content in OFFICIAL
            for key in (name, name.removesuffix(".gz"))
        },
    )

    def load(self) -> Dataset:
        found = available(self.facts)
        if found.kind == "idx":
            raw = read_idx_raw(lambda part, rank: read_idx(found.one(part), rank))
        else:
            raw = read_parquet_raw(found, self.facts.name, channels=1)
        raw.checked(found.folder, self.facts.classes, self.facts.shape)
        return raw.dataset(self.facts.name, CLASSES, mean=(0.286,), std=(0.353,))
