"""Facts about a dataset that are known before it is loaded: files, row counts and licence."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class RemoteFile:
    """A file on the web with its size and digest.

    `digest` is `sha256:...`. An MD5 sum is not enough: two files with the same MD5 sum can be made.
    """

    name: str
    url: str
    size: int
    digest: str


@dataclass(frozen=True)
class FileLayout:
    """One set of files in which a dataset may be stored.

    `parts` maps the name of a part to glob patterns below the dataset's folder. The first pattern with a match gives
    the files of the part. A layout is present if all its parts are.
    """

    kind: str
    parts: Mapping[str, tuple[str, ...]]


@dataclass(frozen=True)
class DatasetInfo:
    """Files, shape, row counts and licence of a built-in dataset."""

    name: str
    shape: tuple[int, ...]
    classes: int
    licence: str
    counts: tuple[tuple[int, int], ...]
    """(train, test) row counts: first the official pair, then those of known variants."""
    clients: tuple[str, ...] = ()
    """Names of the natural clients in order, if they are known before the data are loaded."""
    layouts: tuple[FileLayout, ...] = ()
    remote_files: tuple[RemoteFile, ...] = ()
    hf_repo: str | None = None
    """Hugging Face repository with the data as parquet, if there is no better address."""
    system_package: str | None = None
    """Folder below `/usr/share/datasets` into which a system package installs the files."""
    digests: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """File name to the digests of valid files; `content:...` is the SHA-256 of the content of a `.gz`."""

    @property
    def download_size(self) -> int | None:
        """The bytes to download, or None if unknown."""
        return sum(file.size for file in self.remote_files) or None

    @property
    def can_download(self) -> bool:
        """Whether an address of the files is known."""
        return bool(self.remote_files or self.hf_repo)


def parquet_layout() -> FileLayout:
    """Return the layout of Hugging Face shards, in the folder itself or one below it (`data/`, `plain_text/`)."""
    return FileLayout(
        "parquet",
        {
            "train": ("train*.parquet", "*/train*.parquet"),
            "test": ("test*.parquet", "*/test*.parquet"),
        },
    )


def maybe_gzipped(name: str) -> tuple[str, str]:
    """Return the patterns of a file, plain or compressed."""
    return name, f"{name}.gz"


def mnist_layout() -> FileLayout:
    """Return the layout of the four idx files of MNIST, which FashionMNIST shares."""
    return FileLayout(
        "idx",
        {
            "train_images": maybe_gzipped("train-images-idx3-ubyte"),
            "train_labels": maybe_gzipped("train-labels-idx1-ubyte"),
            "test_images": maybe_gzipped("t10k-images-idx3-ubyte"),
            "test_labels": maybe_gzipped("t10k-labels-idx1-ubyte"),
        },
    )
