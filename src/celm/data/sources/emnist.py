"""EMNIST Balanced (Cohen, Afshar, Tapson, van Schaik 2017), https://www.nist.gov/itl/products-and-services/emnist-dataset.

The images in the official files are transposed; here they are upright.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar

from pydantic import Field

from celm.data.dataset import Dataset, Defaults, Source
from celm.data.facts import Facts, Form, Remote, either
from celm.data.files.fetch import available
from celm.data.files.idx import read_idx
from celm.data.files.idx_archive import read_idx_member
from celm.data.raw import read_idx_raw

# Letters whose upper and lower case look alike are one class.
CLASSES = tuple("0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabdefghnqrt")
ARCHIVE = "gzip.zip"
FILES = {
    f"{part}_{kind}": f"emnist-balanced-{part}-{kind}-{rank}-ubyte"
    for part in ("train", "test")
    for kind, rank in (("images", "idx3"), ("labels", "idx1"))
}


@dataclass(frozen=True)
class Emnist(Source):
    """Handwritten characters (EMNIST Balanced), 28x28 grey, 47 classes, 112,800 + 18,800 images."""

    padding: Annotated[int, Field(ge=0, le=64)] = 2
    """Black margin on each side; 2 gives the 32x32 of the paper's authors."""

    defaults: ClassVar[Defaults] = Defaults(
        model="mlp",
        split="pls",
        rounds=100,
        lr=0.1,
        splits={"pls": {"max_samples": 2000, "min_samples": 100}},
    )
    facts: ClassVar[Facts] = Facts(
        name="emnist",
        shape=(1, 28, 28),
        classes=47,
        licence="none stated by its makers",
        counts=((112800, 18800),),
        forms=(
            Form("idx", {part: (*either(name), f"gzip/{name}.gz") for part, name in FILES.items()}),
            Form("archive", {"archive": (ARCHIVE,)}),
        ),
        remote=(
            Remote(
                ARCHIVE,
                f"https://biometrics.nist.gov/cs_links/EMNIST/{ARCHIVE}",
                561753746,
                "md5:58c8d27c78d21e728a6bc7b3cc06412e",
            ),
        ),
        digests={ARCHIVE: ("md5:58c8d27c78d21e728a6bc7b3cc06412e",)},
    )

    def load(self) -> Dataset:
        found = available(self.facts)
        if found.kind == "idx":
            raw = read_idx_raw(lambda part, rank: read_idx(found.one(part), rank))
        else:
            archive = found.one("archive")
            raw = read_idx_raw(lambda part, rank: read_idx_member(archive, f"{FILES[part]}.gz", rank))
        raw = raw.checked(found.folder, self.facts.classes, self.facts.shape).upright().padded(self.padding)
        return raw.dataset(self.facts.name, CLASSES, mean=(0.1307,), std=(0.3081,))
