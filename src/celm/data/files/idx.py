"""The idx format of MNIST: two zero bytes, a type, a rank, big-endian sizes, then the values.

Only unsigned bytes are read: image datasets use no other type. A file may be compressed, and may be inside a zip
archive. It is read there in place: nothing is extracted, so no file can be written outside its folder.
"""

from __future__ import annotations

import gzip
import io
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from math import prod
from pathlib import Path, PurePosixPath
from typing import BinaryIO, cast

import numpy as np
from numpy.typing import NDArray

from celm.base.errors import CelmError
from celm.base.files import os_errors_as_celm_error

_MAX_IDX_BYTES = 1 << 31
"""Size limit of an idx array. A header that claims more belongs to a damaged or hostile file."""
_MAX_MEMBER_BYTES = 1 << 29
"""Size limit of one member of a zip archive. EMNIST's largest is a fifth of it."""
_UNSIGNED_BYTE = 0x08
_CHUNK_BYTES = 1 << 20
_ZIP_ERRORS = (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, RuntimeError, ValueError)


def read_idx(path: Path, rank: int) -> NDArray[np.uint8]:
    """Return the array in an idx file, compressed or not; its header must state `rank` dimensions."""
    with os_errors_as_celm_error(path, "read"), path.open("rb") as file:
        return parse_idx(file, str(path), rank)


def read_idx_sizes(path: Path, rank: int) -> tuple[int, ...]:
    """Return the sizes in the header of an idx file."""
    with os_errors_as_celm_error(path, "read"), path.open("rb") as file:
        source_name = str(path)
        with _gzip_errors_as_celm_error(source_name):
            return _read_header(_decompress(file), source_name, rank)


def read_idx_member(path: Path, name: str, rank: int) -> NDArray[np.uint8]:
    """Return the array in the idx file `name` inside a zip archive, in any folder of the archive."""
    with os_errors_as_celm_error(path, "read"):
        try:
            with zipfile.ZipFile(path) as archive:
                member = next((m for m in archive.infolist() if PurePosixPath(m.filename).name == name), None)
                if member is None:
                    raise CelmError(f"{path} does not contain {name}")
                if member.file_size > _MAX_MEMBER_BYTES:
                    raise CelmError(f"{path} is damaged: its member {name} is too large")
                content = archive.read(member)
        except _ZIP_ERRORS as error:
            raise CelmError(f"{path} is damaged: {error}") from error
    return parse_idx(io.BytesIO(content), f"{path}, {name}", rank)


def parse_idx(file: BinaryIO, source_name: str, rank: int) -> NDArray[np.uint8]:
    """Return the array in an open idx file; errors call it `source_name`."""
    with _gzip_errors_as_celm_error(source_name):
        stream = _decompress(file)
        sizes = _read_header(stream, source_name, rank)
        expected = prod(sizes)
        # Read in pieces, so that memory grows with the content of the file, not with the claim of its header.
        content = bytearray()
        while len(content) <= expected and (
            piece := stream.read(min(_CHUNK_BYTES, expected + 1 - len(content)))
        ):
            content += piece
    if len(content) < expected:
        raise CelmError(f"{source_name} is truncated: {expected} values expected, {len(content)} found")
    if len(content) > expected:
        raise CelmError(f"{source_name} is damaged: it has more than the {expected} values of its header")
    return np.frombuffer(content, dtype=np.uint8).reshape(sizes)


def _decompress(file: BinaryIO) -> BinaryIO:
    magic = file.read(2)
    file.seek(0)
    return cast(BinaryIO, gzip.GzipFile(fileobj=file)) if magic == b"\x1f\x8b" else file


def _read_header(stream: BinaryIO, source_name: str, rank: int) -> tuple[int, ...]:
    magic = stream.read(4)
    if len(magic) < 4 or magic[:2] != b"\0\0" or magic[2] != _UNSIGNED_BYTE:
        raise CelmError(
            f"{source_name} is not an idx file of unsigned bytes (it starts with 0x{magic.hex()})"
        )
    if magic[3] != rank:
        raise CelmError(f"{source_name} has {magic[3]} dimensions, not {rank}")
    size_bytes = stream.read(4 * rank)
    if len(size_bytes) < 4 * rank:
        raise CelmError(f"{source_name} is truncated: its header is incomplete")
    sizes = tuple(int.from_bytes(size_bytes[4 * i : 4 * i + 4], "big") for i in range(rank))
    if prod(sizes) > _MAX_IDX_BYTES or max(sizes) > _MAX_IDX_BYTES:
        raise CelmError(f"{source_name} is damaged: its header claims {' x '.join(map(str, sizes))} values")
    return sizes


@contextmanager
def _gzip_errors_as_celm_error(source_name: str) -> Iterator[None]:
    try:
        yield
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise CelmError(f"{source_name} is damaged: {str(error).lower()}") from error
