"""The idx reader: right arrays, and one line for whatever is wrong."""

from __future__ import annotations

import gzip
import io
import struct
import zipfile
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from celm.base.errors import CelmError
from celm.data.files.idx import parse_idx, read_idx, read_idx_member, read_idx_sizes


def idx(array: np.ndarray) -> bytes:
    return (
        struct.pack(f">HBB{array.ndim}I", 0, 8, array.ndim, *array.shape) + array.astype(np.uint8).tobytes()
    )


IMAGES = np.arange(2 * 3 * 4, dtype=np.uint8).reshape(2, 3, 4)


def zipped(content: bytes) -> bytes:
    """Without the time in the header: the content names its test, which must be the same in every process."""
    return gzip.compress(content, mtime=0)


@pytest.mark.parametrize("compress", [bytes, gzip.compress])
def test_reads_what_was_written(tmp_path: Path, compress: type[bytes]) -> None:
    path = tmp_path / "images"
    path.write_bytes(compress(idx(IMAGES)))
    assert np.array_equal(read_idx(path, rank=3), IMAGES)
    assert read_idx_sizes(path, rank=3) == (2, 3, 4)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "not an idx file"),
        (b"\x00\x00\x0d\x03" + b"\0" * 12, "not an idx file"),
        (b"PK\x03\x04 something else", "not an idx file"),
        (idx(IMAGES)[:9], "truncated"),
        (idx(IMAGES)[:-1], "truncated: 24 values expected, 23 found"),
        (idx(IMAGES) + b"x", "more than the 24 values"),
        (idx(np.zeros(5)), "1 dimensions, not 3"),
        (struct.pack(">HBB3I", 0, 8, 3, 2**32 - 1, 2**32 - 1, 9), "its header claims"),
        (struct.pack(">HBB3I", 0, 8, 3, 1000, 1000, 1000), "truncated"),
        (zipped(idx(IMAGES))[:-12], "damaged"),
        (zipped(idx(IMAGES))[:15] + b"\xff" * 20, "damaged"),
        (zipped(struct.pack(">HBB3I", 0, 8, 3, 1000, 1000, 1000)), "truncated"),
    ],
)
def test_a_bad_file_is_one_line_that_names_it(tmp_path: Path, content: bytes, message: str) -> None:
    path = tmp_path / "train-images-idx3-ubyte.gz"
    path.write_bytes(content)
    with pytest.raises(CelmError, match=message) as caught:
        read_idx(path, rank=3)
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_missing_file_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(CelmError, match="no such file"):
        read_idx(tmp_path / "none", rank=1)


@given(st.binary(max_size=200), st.booleans(), st.booleans(), st.integers(0, 4))
def test_random_bytes_never_raise_anything_else(
    content: bytes, start: bool, compress: bool, rank: int
) -> None:
    content = bytes([0, 0, 8, rank]) + content if start else content
    content = zipped(content) if compress else content
    with suppress(CelmError):
        parse_idx(io.BytesIO(content), "here", max(rank, 1))


@given(st.data())
def test_a_damaged_gzip_never_raises_anything_else(data: st.DataObject) -> None:
    content = bytearray(zipped(idx(IMAGES)))
    for _ in range(data.draw(st.integers(1, 4))):
        content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    with suppress(CelmError):
        parse_idx(io.BytesIO(bytes(content)), "here", 3)


def test_reads_from_inside_a_zip(tmp_path: Path) -> None:
    path = tmp_path / "gzip.zip"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("../../gzip/images.gz", gzip.compress(idx(IMAGES)))
    assert np.array_equal(read_idx_member(path, "images.gz", rank=3), IMAGES)
    assert list(tmp_path.iterdir()) == [path]
    with pytest.raises(CelmError, match="does not contain labels"):
        read_idx_member(path, "labels.gz", rank=1)
    path.write_bytes(path.read_bytes()[:40])
    with pytest.raises(CelmError, match="damaged"):
        read_idx_member(path, "images.gz", rank=3)
