"""Hugging Face style parquet: `image` (a struct with `bytes`, or plain binary), `label`, any other column."""

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
from celm.data.files.images import Channels, decode_all

IMAGE_COLUMNS = ("image", "img")
"""Some sets on the hub, CIFAR-10 among them, say `img`."""
SHARD = re.compile(r"(?P<stem>.*)-(?P<number>\d+)-of-(?P<total>\d+)\.parquet")


@contextmanager
def readable(path: Path) -> Iterator[None]:
    """Turn whatever arrow says about a bad file into one line."""
    try:
        yield
    except (pa.ArrowException, OSError, ValueError, KeyError, MemoryError) as error:
        reason = str(error).strip().splitlines() or ["damaged file"]
        raise CelmError(f"cannot read {path}: {reason[0]}") from error


def schema(path: Path) -> Any:
    with readable(path):
        return pq.read_schema(path)


def count(paths: Sequence[Path]) -> int:
    """Rows in all files, from their footers."""
    total = 0
    for path in paths:
        with readable(path):
            total += int(pq.read_metadata(path).num_rows)
    return total


def column(paths: Sequence[Path], name: str) -> list[int] | list[str]:
    """A column of whole numbers or of text, over all files in order; nothing may be missing."""
    values: list[Any] = []
    for path in paths:
        if name not in schema(path).names:
            raise CelmError(f"{path} has no column '{name}'", f"it has: {', '.join(schema(path).names)}")
        with readable(path):
            data = pq.read_table(path, columns=[name]).column(name)
            if pa.types.is_dictionary(data.type):
                data = data.cast(data.type.value_type)
        kind = data.type
        if not (pa.types.is_integer(kind) or pa.types.is_string(kind) or pa.types.is_large_string(kind)):
            raise CelmError(f"column '{name}' of {path} must hold whole numbers or text, not {kind}")
        if data.null_count:
            raise CelmError(f"column '{name}' of {path} has {data.null_count} missing values")
        with readable(path):
            values += data.to_pylist()
    if values and any(type(value) is not type(values[0]) for value in values):
        raise CelmError(
            f"column '{name}' is text in one file and numbers in another: {paths[0]}, {paths[-1]}"
        )
    return values


def class_names(path: Path, name: str = "label") -> tuple[str, ...] | None:
    """Names in the file's `huggingface` metadata, if it has any."""
    raw = (schema(path).metadata or {}).get(b"huggingface")
    try:
        names = json.loads(raw)["info"]["features"][name]["names"] if raw else None
    except (ValueError, KeyError, TypeError):
        return None
    if not isinstance(names, list) or not all(isinstance(entry, str) for entry in names):
        return None
    return tuple(names) or None


def decoded(paths: Sequence[Path], channels: Channels, size: int | None = None) -> Tensor:
    """All images of all files in order, uint8 `[n, c, h, w]`."""
    rows = count(paths)
    if rows == 0:
        raise CelmError(f"{paths[0]} has no rows" if paths else "no parquet files were given")
    return decode_all(encoded(paths), rows, channels, size)


def encoded(paths: Sequence[Path]) -> Iterator[tuple[str, bytes]]:
    """Every image's bytes with the file and row it came from, one row group in memory at a time."""
    for path in paths:
        name = image_column(path)
        row = 0
        with readable(path):
            file = pq.ParquetFile(path)
        with file:
            for group in range(file.num_row_groups):
                with readable(path):
                    data = file.read_row_group(group, columns=[name]).column(name)
                    chunks = [chunk.field("bytes") if is_struct(chunk) else chunk for chunk in data.chunks]
                for chunk in chunks:
                    for content in chunk:
                        value = content.as_py()
                        if value is None:
                            raise CelmError(f"{path}, row {row}: the image has no bytes")
                        yield f"{path}, row {row}", value
                        row += 1


def is_struct(data: Any) -> bool:
    return bool(pa.types.is_struct(data.type))


def image_column(path: Path) -> str:
    found = schema(path)
    name = next((name for name in IMAGE_COLUMNS if name in found.names), None)
    if name is None:
        raise CelmError(f"{path} has no column 'image'", f"it has: {', '.join(found.names)}")
    kind = found.field(name).type
    if pa.types.is_struct(kind):
        index = kind.get_field_index("bytes")
        kind = kind.field(index).type if index >= 0 else kind
    if not (pa.types.is_binary(kind) or pa.types.is_large_binary(kind)):
        raise CelmError(f"column '{name}' of {path} must hold image bytes, not {kind}")
    return name


def missing_shard(paths: Sequence[Path]) -> str | None:
    """Name of a shard that should be beside these (`...-00001-of-00004.parquet`) and is not."""
    names = {path.name for path in paths}
    for name in sorted(names):
        match = SHARD.fullmatch(name)
        if match is None:
            continue
        number, total = match["number"], match["total"]
        for other in range(min(int(total), 100_000)):
            sibling = f"{match['stem']}-{other:0{len(number)}d}-of-{total}.parquet"
            if sibling not in names:
                return sibling
    return None
