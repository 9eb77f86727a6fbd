"""The idx format of MNIST and its kin: two zero bytes, a type, a rank, big-endian sizes, then the values.

Only unsigned bytes are read, which is all that image datasets use.
"""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from math import prod
from pathlib import Path
from typing import BinaryIO, cast

import numpy as np
from numpy.typing import NDArray

from celm.base.errors import CelmError
from celm.base.files import explained

MOST_BYTES = 1 << 31
"""More than any idx dataset has; a header that claims more is a damaged or hostile file."""
UNSIGNED_BYTE = 0x08
CHUNK = 1 << 20


def read_idx(path: Path, rank: int) -> NDArray[np.uint8]:
    """The array in an idx file, compressed or not; its header must say that it has `rank` dimensions."""
    with explained(path, "read"), path.open("rb") as file:
        return parse_idx(file, str(path), rank)


def read_idx_sizes(path: Path, rank: int) -> tuple[int, ...]:
    """Just the sizes in the header."""
    with explained(path, "read"), path.open("rb") as file:
        where = str(path)
        with damage(where):
            return header(inflated(file), where, rank)


def parse_idx(file: BinaryIO, where: str, rank: int) -> NDArray[np.uint8]:
    """The same from an open file; `where` names it in errors."""
    with damage(where):
        stream = inflated(file)
        sizes = header(stream, where, rank)
        expected = prod(sizes)
        # Read in pieces: memory then grows with what the file really holds, not with what its header claims.
        content = bytearray()
        while len(content) <= expected and (piece := stream.read(min(CHUNK, expected + 1 - len(content)))):
            content += piece
    if len(content) < expected:
        raise CelmError(f"{where} is truncated: {expected} values expected, {len(content)} found")
    if len(content) > expected:
        raise CelmError(f"{where} is damaged: more than the {expected} values its header announces")
    return np.frombuffer(content, dtype=np.uint8).reshape(sizes)


def inflated(file: BinaryIO) -> BinaryIO:
    start = file.read(2)
    file.seek(0)
    return cast(BinaryIO, gzip.GzipFile(fileobj=file)) if start == b"\x1f\x8b" else file


def header(stream: BinaryIO, where: str, rank: int) -> tuple[int, ...]:
    magic = stream.read(4)
    if len(magic) < 4 or magic[:2] != b"\0\0" or magic[2] != UNSIGNED_BYTE:
        raise CelmError(f"{where} is not an idx file of unsigned bytes (it starts with 0x{magic.hex()})")
    if magic[3] != rank:
        raise CelmError(f"{where} has {magic[3]} dimensions where {rank} are expected")
    raw = stream.read(4 * rank)
    if len(raw) < 4 * rank:
        raise CelmError(f"{where} is truncated: its header ends early")
    sizes = tuple(int.from_bytes(raw[4 * i : 4 * i + 4], "big") for i in range(rank))
    if prod(sizes) > MOST_BYTES or max(sizes) > MOST_BYTES:
        raise CelmError(f"{where} is damaged: its header claims {' x '.join(map(str, sizes))} values")
    return sizes


@contextmanager
def damage(where: str) -> Iterator[None]:
    """Turn what gzip says about bad input into one line."""
    try:
        yield
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise CelmError(f"{where} is damaged: {str(error).lower()}") from error
