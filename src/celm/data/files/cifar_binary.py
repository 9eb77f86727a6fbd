"""The binary versions of CIFAR-10 and CIFAR-100: files of records, each with its labels and 3 x 32 x 32 pixels.

The archive is read in place: nothing is extracted, so no file can be written outside its folder.
"""

from __future__ import annotations

import gzip
import tarfile
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

import numpy as np
import torch
from torch import Tensor

from celm.base.errors import CelmError
from celm.base.files import os_errors_as_celm_error

_PIXEL_BYTES = 3 * 32 * 32
_MAX_RECORDS = 100_000


@dataclass(frozen=True)
class CifarFormat:
    """File names and records of one of the two datasets. The last label of a record is the class."""

    title: str
    train_files: tuple[str, ...]
    test_files: tuple[str, ...]
    labels: int
    classes: int

    @property
    def record_bytes(self) -> int:
        """Size of a record."""
        return self.labels + _PIXEL_BYTES

    @property
    def max_file_bytes(self) -> int:
        """Size limit of a file; a larger one is damaged or hostile."""
        return _MAX_RECORDS * self.record_bytes

    @property
    def files(self) -> tuple[str, ...]:
        """Names of all files."""
        return (*self.train_files, *self.test_files)


CIFAR10 = CifarFormat(
    "CIFAR-10",
    tuple(f"data_batch_{number}.bin" for number in range(1, 6)),
    ("test_batch.bin",),
    labels=1,
    classes=10,
)
CIFAR100 = CifarFormat("CIFAR-100", ("train.bin",), ("test.bin",), labels=2, classes=100)


def read_batches(layout: CifarFormat, paths: Sequence[Path]) -> tuple[Tensor, Tensor]:
    """Return images uint8 `[n, 3, 32, 32]` and labels `[n]` of unpacked batches."""
    contents = []
    for path in paths:
        with os_errors_as_celm_error(path, "read"):
            if path.stat().st_size > layout.max_file_bytes:
                raise CelmError(f"{path} is too large to be a {layout.title} batch")
            contents.append((str(path), path.read_bytes()))
    return _parse_batches(layout, contents)


def read_archive(layout: CifarFormat, path: Path) -> tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]]:
    """Return (images, labels) of the training set and of the test set in the official `.tar.gz`."""
    contents: dict[str, tuple[str, bytes]] = {}
    with os_errors_as_celm_error(path, "read"):
        try:
            with tarfile.open(path, "r|*") as archive:
                for member in archive:
                    name = PurePosixPath(member.name).name
                    if not member.isfile() or name not in layout.files:
                        continue
                    if member.size > layout.max_file_bytes:
                        raise CelmError(
                            f"{path} is damaged: {name} is too large to be a {layout.title} batch"
                        )
                    file = archive.extractfile(member)
                    contents[name] = f"{path}, {name}", file.read() if file else b""
        except (tarfile.TarError, gzip.BadGzipFile, EOFError, zlib.error) as error:
            raise CelmError(f"{path} is damaged: {error}") from error
    missing = [name for name in layout.files if name not in contents]
    if missing:
        raise CelmError(f"{path} is damaged: it has no {missing[0]}")
    train, test = ([contents[name] for name in names] for names in (layout.train_files, layout.test_files))
    return _parse_batches(layout, train), _parse_batches(layout, test)


def _parse_batches(layout: CifarFormat, contents: Sequence[tuple[str, bytes]]) -> tuple[Tensor, Tensor]:
    batches = []
    size, highest = layout.record_bytes, layout.classes - 1
    for source_name, content in contents:
        if not content or len(content) % size:
            raise CelmError(f"{source_name} is damaged: {len(content)} bytes are not whole records of {size}")
        records = np.frombuffer(content, dtype=np.uint8).reshape(-1, size)
        if (label := records[:, layout.labels - 1].max()) > highest:
            raise CelmError(f"{source_name} is damaged: it has a label above {highest}: {label}")
        batches.append(records)
    records = np.concatenate(batches)
    images = torch.from_numpy(records[:, layout.labels :].reshape(-1, 3, 32, 32).copy())
    return images, torch.from_numpy(records[:, layout.labels - 1].astype(np.int64))
