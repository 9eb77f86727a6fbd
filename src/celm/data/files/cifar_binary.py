"""The binary version of CIFAR-10: files of 10,000 records, each a label and 3 x 32 x 32 pixels.

The archive is read in place: nothing is extracted, so no file can be written outside its folder.
"""

from __future__ import annotations

import gzip
import tarfile
import zlib
from collections.abc import Sequence
from pathlib import Path, PurePosixPath

import numpy as np
import torch
from torch import Tensor

from celm.base.errors import CelmError
from celm.base.files import os_errors_as_celm_error

RECORD_BYTES = 1 + 3 * 32 * 32
_MAX_BATCH_BYTES = 100_000 * RECORD_BYTES
TRAIN_BATCHES = tuple(f"data_batch_{number}.bin" for number in range(1, 6))
TEST_BATCHES = ("test_batch.bin",)


def read_batches(paths: Sequence[Path]) -> tuple[Tensor, Tensor]:
    """Return images uint8 `[n, 3, 32, 32]` and labels `[n]` of unpacked batches."""
    contents = []
    for path in paths:
        with os_errors_as_celm_error(path, "read"):
            if path.stat().st_size > _MAX_BATCH_BYTES:
                raise CelmError(f"{path} is too large to be a CIFAR-10 batch")
            contents.append((str(path), path.read_bytes()))
    return _parse_batches(contents)


def read_archive(path: Path) -> tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]]:
    """Return (images, labels) of the training set and of the test set in `cifar-10-binary.tar.gz`."""
    contents: dict[str, tuple[str, bytes]] = {}
    with os_errors_as_celm_error(path, "read"):
        try:
            with tarfile.open(path, "r|*") as archive:
                for member in archive:
                    name = PurePosixPath(member.name).name
                    if not member.isfile() or name not in (*TRAIN_BATCHES, *TEST_BATCHES):
                        continue
                    if member.size > _MAX_BATCH_BYTES:
                        raise CelmError(f"{path} is damaged: {name} is too large to be a CIFAR-10 batch")
                    file = archive.extractfile(member)
                    contents[name] = f"{path}, {name}", file.read() if file else b""
        except (tarfile.TarError, gzip.BadGzipFile, EOFError, zlib.error) as error:
            raise CelmError(f"{path} is damaged: {error}") from error
    missing = [name for name in (*TRAIN_BATCHES, *TEST_BATCHES) if name not in contents]
    if missing:
        raise CelmError(f"{path} is damaged: it has no {missing[0]}")
    train, test = ([contents[name] for name in names] for names in (TRAIN_BATCHES, TEST_BATCHES))
    return _parse_batches(train), _parse_batches(test)


def _parse_batches(contents: Sequence[tuple[str, bytes]]) -> tuple[Tensor, Tensor]:
    batches = []
    for source_name, content in contents:
        if not content or len(content) % RECORD_BYTES:
            raise CelmError(
                f"{source_name} is damaged: {len(content)} bytes are not whole records of {RECORD_BYTES}"
            )
        records = np.frombuffer(content, dtype=np.uint8).reshape(-1, RECORD_BYTES)
        if records[:, 0].max() > 9:
            raise CelmError(f"{source_name} is damaged: it has a label above 9: {records[:, 0].max()}")
        batches.append(records)
    records = np.concatenate(batches)
    images = torch.from_numpy(records[:, 1:].reshape(-1, 3, 32, 32).copy())
    return images, torch.from_numpy(records[:, 0].astype(np.int64))
