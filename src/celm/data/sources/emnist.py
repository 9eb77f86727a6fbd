"""EMNIST Balanced (Cohen, Afshar, Tapson, van Schaik 2017).

https://www.nist.gov/itl/products-and-services/emnist-dataset

The official files contain transposed images, which are transposed back on loading.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar

from pydantic import Field

from celm.data.dataset import Dataset, DatasetSource, Defaults
from celm.data.dataset_info import DatasetInfo, FileLayout, RemoteFile, maybe_gzipped
from celm.data.files.ensure import ensure_files
from celm.data.files.idx import read_idx, read_idx_member
from celm.data.raw_images import read_idx_images

# Letters with similar upper and lower case are one class.
EMNIST_CLASSES = tuple("0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabdefghnqrt")
_EMNIST_ARCHIVE = "gzip.zip"
EMNIST_FILES = {
    f"{part}_{kind}": f"emnist-balanced-{part}-{kind}-{rank}-ubyte"
    for part in ("train", "test")
    for kind, rank in (("images", "idx3"), ("labels", "idx1"))
}


@dataclass(frozen=True)
class Emnist(DatasetSource):
    """Handwritten characters (EMNIST Balanced), 28x28, 47 classes.

    There are 112,800 training and 18,800 test images, grey.
    """

    padding: Annotated[int, Field(ge=0, le=64)] = 2
    """Black margin on each side in pixels; 2 gives the 32x32 of the paper's authors."""

    defaults: ClassVar[Defaults] = Defaults(
        model="mlp",
        split="pls",
        rounds=100,
        lr=0.1,
        splits={"pls": {"max_samples": 2000, "min_samples": 100}},
    )
    info: ClassVar[DatasetInfo] = DatasetInfo(
        name="emnist",
        shape=(1, 28, 28),
        classes=47,
        licence="none stated by its makers",
        counts=((112800, 18800),),
        layouts=(
            FileLayout(
                "idx",
                {part: (*maybe_gzipped(name), f"gzip/{name}.gz") for part, name in EMNIST_FILES.items()},
            ),
            FileLayout("archive", {"archive": (_EMNIST_ARCHIVE,)}),
        ),
        remote_files=(
            RemoteFile(
                _EMNIST_ARCHIVE,
                f"https://biometrics.nist.gov/cs_links/EMNIST/{_EMNIST_ARCHIVE}",
                561753746,
                "sha256:fb9bb67e33772a9cc0b895e4ecf36d2cf35be8b709693c3564cea2a019fcda8e",
            ),
        ),
        digests={
            _EMNIST_ARCHIVE: ("sha256:fb9bb67e33772a9cc0b895e4ecf36d2cf35be8b709693c3564cea2a019fcda8e",)
        },
    )

    def load(self) -> Dataset:
        located = ensure_files(self.info)
        if located.kind == "idx":
            raw = read_idx_images(lambda part, rank: read_idx(located.path(part), rank))
        else:
            archive = located.path("archive")
            raw = read_idx_images(
                lambda part, rank: read_idx_member(archive, f"{EMNIST_FILES[part]}.gz", rank)
            )
        raw = raw.validate(located.folder, self.info.classes, self.info.shape).transpose().pad(self.padding)
        return raw.to_dataset(self.info.name, EMNIST_CLASSES, mean=(0.1307,), std=(0.3081,))
