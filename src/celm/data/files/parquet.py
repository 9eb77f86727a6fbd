"""Parquet files as on the Hugging Face hub: columns `image` (a struct with `bytes`, or binary), `label`, and others."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from torch import Tensor

from celm.base.errors import CelmError
from celm.data.files.images import Channels, decode_images

_IMAGE_COLUMNS = ("image", "img")
"""Names of the image column. Some datasets on the hub, such as CIFAR-10, use `img`."""
_SHARD_NAME = re.compile(r"(?P<stem>.*)-(?P<number>\d+)-of-(?P<total>\d+)\.parquet")


@contextmanager
def _arrow_errors_as_celm_error(path: Path) -> Iterator[None]:
    """Turn an error of arrow on a damaged file into a one-line `CelmError`."""
    try:
        yield
    except (pa.ArrowException, OSError, ValueError, KeyError, MemoryError) as error:
        reason = str(error).strip().splitlines() or ["damaged file"]
        raise CelmError(f"cannot read {path}: {reason[0]}") from error


def read_schema(path: Path) -> Any:
    """Return the schema of a parquet file."""
    with _arrow_errors_as_celm_error(path):
        return pq.read_schema(path)


def count_parquet_rows(paths: Sequence[Path]) -> int:
    """Return the number of rows in all files, as their footers state it."""
    total = 0
    for path in paths:
        with _arrow_errors_as_celm_error(path):
            total += int(pq.read_metadata(path).num_rows)
    return total


def read_column(paths: Sequence[Path], name: str) -> list[int] | list[str]:
    """Return a column of integers or of text over all files, in order; no value may be missing."""
    values: list[Any] = []
    for path in paths:
        if name not in read_schema(path).names:
            raise CelmError(f"{path} has no column '{name}'", f"it has: {', '.join(read_schema(path).names)}")
        with _arrow_errors_as_celm_error(path):
            data = pq.read_table(path, columns=[name]).column(name)
            if pa.types.is_dictionary(data.type):
                data = data.cast(data.type.value_type)
        column_type = data.type
        if not (
            pa.types.is_integer(column_type)
            or pa.types.is_string(column_type)
            or pa.types.is_large_string(column_type)
        ):
            raise CelmError(f"column '{name}' of {path} must contain integers or text, not {column_type}")
        if data.null_count:
            raise CelmError(f"column '{name}' of {path} has {data.null_count} missing values")
        with _arrow_errors_as_celm_error(path):
            values += data.to_pylist()
    if values and any(type(value) is not type(values[0]) for value in values):
        raise CelmError(
            f"column '{name}' is text in one file and numbers in another: {paths[0]}, {paths[-1]}"
        )
    return values


def read_class_names(path: Path, name: str = "label") -> tuple[str, ...] | None:
    """Return the class names in the file's `huggingface` metadata, or None."""
    raw = (read_schema(path).metadata or {}).get(b"huggingface")
    try:
        names = json.loads(raw)["info"]["features"][name]["names"] if raw else None
    except (ValueError, KeyError, TypeError):
        return None
    if not isinstance(names, list) or not all(isinstance(entry, str) for entry in names):
        return None
    return tuple(names) or None


def decode_parquet_images(paths: Sequence[Path], channels: Channels, size: int | None = None) -> Tensor:
    """Return the images of all files, in order, as uint8 `[n, c, h, w]`."""
    num_rows = count_parquet_rows(paths)
    if num_rows == 0:
        raise CelmError(f"{paths[0]} has no rows" if paths else "no parquet files given")
    return decode_images(_iter_encoded_images(paths), num_rows, channels, size)


def _iter_encoded_images(paths: Sequence[Path]) -> Iterator[tuple[str, bytes]]:
    """Yield each image's file and row, for errors, and its bytes. One row group is in memory at a time."""
    for path in paths:
        name = _find_image_column(path)
        row = 0
        with _arrow_errors_as_celm_error(path):
            file = pq.ParquetFile(path)
        with file:
            for group in range(file.num_row_groups):
                with _arrow_errors_as_celm_error(path):
                    data = file.read_row_group(group, columns=[name]).column(name)
                    chunks = [chunk.field("bytes") if _is_struct(chunk) else chunk for chunk in data.chunks]
                for chunk in chunks:
                    for content in chunk:
                        value = content.as_py()
                        if value is None:
                            raise CelmError(f"{path}, row {row}: the image has no bytes")
                        yield f"{path}, row {row}", value
                        row += 1


def _is_struct(data: Any) -> bool:
    return bool(pa.types.is_struct(data.type))


def has_image_column(path: Path) -> bool:
    """Return whether a parquet file has images."""
    return any(name in read_schema(path).names for name in _IMAGE_COLUMNS)


def _find_image_column(path: Path) -> str:
    file_schema = read_schema(path)
    name = next((name for name in _IMAGE_COLUMNS if name in file_schema.names), None)
    if name is None:
        raise CelmError(f"{path} has no column 'image'", f"it has: {', '.join(file_schema.names)}")
    column_type = file_schema.field(name).type
    if pa.types.is_struct(column_type):
        index = column_type.get_field_index("bytes")
        column_type = column_type.field(index).type if index >= 0 else column_type
    if not (pa.types.is_binary(column_type) or pa.types.is_large_binary(column_type)):
        raise CelmError(f"column '{name}' of {path} must contain image bytes, not {column_type}")
    return name


def find_missing_shard(paths: Sequence[Path]) -> str | None:
    """Return the name of a missing shard (`...-00001-of-00004.parquet`) beside these files, or None."""
    names = {path.name for path in paths}
    for name in sorted(names):
        match = _SHARD_NAME.fullmatch(name)
        if match is None:
            continue
        number, total = match["number"], match["total"]
        for shard_index in range(min(int(total), 100_000)):
            sibling = f"{match['stem']}-{shard_index:0{len(number)}d}-of-{total}.parquet"
            if sibling not in names:
                return sibling
    return None
