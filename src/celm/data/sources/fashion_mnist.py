"""FashionMNIST (Xiao, Rasul, Vollgraf 2017), https://github.com/zalandoresearch/fashion-mnist."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from celm.data.dataset import Dataset, DatasetSource, Defaults
from celm.data.dataset_info import DatasetInfo, RemoteFile, mnist_layout, parquet_layout
from celm.data.files.ensure import ensure_files
from celm.data.files.idx import read_idx
from celm.data.raw_images import read_idx_images, read_parquet_images

_FASHION_MNIST_CLASSES = (
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
_BASE_URL = "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com"
# Name, size and SHA-256 of the official .gz (whose MD5 the makers publish), and SHA-256 of its content.
# The last is needed because Debian ships the same content in another .gz, without a name in its header.
_OFFICIAL_FILES = (
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
class FashionMnist(DatasetSource):
    """Articles of clothing, 28x28 grey, 10 classes.

    There are 60,000 training and 10,000 test images.
    """

    defaults: ClassVar[Defaults] = Defaults(model="mlp", split="pls", rounds=100, lr=0.1)
    info: ClassVar[DatasetInfo] = DatasetInfo(
        name="fashion_mnist",
        shape=(1, 28, 28),
        classes=10,
        licence="MIT",
        counts=((60000, 10000),),
        layouts=(
            mnist_layout(),
            parquet_layout(),
        ),
        remote_files=tuple(
            RemoteFile(name, f"{_BASE_URL}/{name}", size, f"sha256:{sha}")
            for name, size, sha, _ in _OFFICIAL_FILES
        ),
        system_package="fashion-mnist",
        digests={
            key: (f"content:{content}",)
            for name, _, _, content in _OFFICIAL_FILES
            for key in (name, name.removesuffix(".gz"))
        },
    )

    def load(self) -> Dataset:
        located = ensure_files(self.info)
        if located.kind == "idx":
            raw = read_idx_images(lambda part, rank: read_idx(located.path(part), rank))
        else:
            raw = read_parquet_images(located, self.info.name, channels=1)
        raw.validate(located.folder, self.info.classes, self.info.shape)
        return raw.to_dataset(self.info.name, _FASHION_MNIST_CLASSES, mean=(0.286,), std=(0.353,))
