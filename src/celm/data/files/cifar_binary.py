"""The binary version of CIFAR-10: 10,000 records a file, each a label and 3 x 32 x 32 pixels.

Read from the unpacked folder, or straight from the archive: nothing is extracted, so nothing in it can land
outside its folder.
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
from celm.base.files import explained

RECORD = 1 + 3 * 32 * 32
MOST_BYTES = 100_000 * RECORD
TRAIN = tuple(f"data_batch_{number}.bin" for number in range(1, 6))
TEST = ("test_batch.bin",)


def read_batches(paths: Sequence[Path]) -> tuple[Tensor, Tensor]:
    """Images uint8 `[n, 3, 32, 32]` and labels `[n]` of unpacked batches."""
    contents = []
    for path in paths:
        with explained(path, "read"):
            if path.stat().st_size > MOST_BYTES:
                raise CelmError(f"{path} is too large to be a CIFAR-10 batch")
            contents.append((str(path), path.read_bytes()))
    return parse(contents)


def read_archive(path: Path) -> tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]]:
    """(images, labels) to train on and to test on, from `cifar-10-binary.tar.gz`."""
    contents: dict[str, tuple[str, bytes]] = {}
    with explained(path, "read"):
        try:
            with tarfile.open(path, "r|*") as archive:
                for member in archive:
                    name = PurePosixPath(member.name).name
                    if not member.isfile() or name not in (*TRAIN, *TEST):
                        continue
                    if member.size > MOST_BYTES:
                        raise CelmError(f"{path} is damaged: {name} is too large to be a CIFAR-10 batch")
                    file = archive.extractfile(member)
                    contents[name] = f"{path}, {name}", file.read() if file else b""
        except (tarfile.TarError, gzip.BadGzipFile, EOFError, zlib.error) as error:
            raise CelmError(f"{path} is damaged: {error}") from error
    lost = [name for name in (*TRAIN, *TEST) if name not in contents]
    if lost:
        raise CelmError(f"{path} is damaged: it has no {lost[0]}")
    return parse([contents[name] for name in TRAIN]), parse([contents[name] for name in TEST])


def parse(contents: Sequence[tuple[str, bytes]]) -> tuple[Tensor, Tensor]:
    parts = []
    for where, content in contents:
        if not content or len(content) % RECORD:
            raise CelmError(f"{where} is damaged: {len(content)} bytes are not whole records of {RECORD}")
        records = np.frombuffer(content, dtype=np.uint8).reshape(-1, RECORD)
        if records[:, 0].max() > 9:
            raise CelmError(f"{where} is damaged: it has a label {records[:, 0].max()}, beyond 9")
        parts.append(records)
    records = np.concatenate(parts)
    images = torch.from_numpy(records[:, 1:].reshape(-1, 3, 32, 32).copy())
    return images, torch.from_numpy(records[:, 0].astype(np.int64))
