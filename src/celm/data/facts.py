"""What is known about a dataset before it is loaded: its files, counts and licence."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Remote:
    """One file on the web, and how to know that it is the right one.

    `digest` is `sha256:...` or, where the makers publish nothing better, `md5:...`.
    """

    name: str
    url: str
    size: int
    digest: str


@dataclass(frozen=True)
class Form:
    """One set of files a dataset may come as.

    `parts` maps the name of a part to glob patterns below the dataset's folder; the first pattern that
    matches anything gives the part's files, and a form is there when all its parts are.
    """

    kind: str
    parts: Mapping[str, tuple[str, ...]]


@dataclass(frozen=True)
class Facts:
    name: str
    shape: tuple[int, ...]
    classes: int
    licence: str
    counts: tuple[tuple[int, int], ...]
    """(train, test) rows; the official pair first, then pairs of known variants."""
    forms: tuple[Form, ...] = ()
    remote: tuple[Remote, ...] = ()
    hub: str | None = None
    """Hugging Face repository with the data as parquet, where there is no better address."""
    package: str | None = None
    """Folder below `/usr/share/datasets` where a system package puts the files."""
    digests: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """File name to digests of good files; `content:...` is the SHA-256 of what is inside a `.gz`."""

    @property
    def download_size(self) -> int | None:
        return sum(file.size for file in self.remote) or None

    @property
    def can_download(self) -> bool:
        return bool(self.remote or self.hub)


def parquet_form() -> Form:
    """Hugging Face style shards, in the folder itself or one below it (`data/`, `plain_text/`)."""
    return Form(
        "parquet",
        {
            "train": ("train*.parquet", "*/train*.parquet"),
            "test": ("test*.parquet", "*/test*.parquet"),
        },
    )


def either(name: str) -> tuple[str, str]:
    """A file as it is, or compressed."""
    return name, f"{name}.gz"
