"""Tables as CSV or parquet: columns of numbers and of texts as the inputs of a model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
import pyarrow.parquet
from numpy.typing import NDArray

from celm.base.errors import CelmError
from celm.base.files import os_errors_as_celm_error

TABLE_SUFFIXES = (".csv", ".parquet")
_MAX_TEXTS = 100
"""Limit on the distinct texts of a column; a column with more is a name or a comment, not a category."""


def read_frame(paths: Sequence[Path]) -> Any:
    """Return the rows of all files, which must have the same columns, as one table."""
    tables = []
    for path in paths:
        with os_errors_as_celm_error(path, "read"):
            try:
                reader = pa.csv.read_csv if path.suffix == ".csv" else pa.parquet.read_table
                tables.append(reader(path))
            except (pa.ArrowException, ValueError) as error:
                reason = str(error).strip().splitlines() or ["damaged file"]
                raise CelmError(f"cannot read {path}: {reason[0]}") from error
        if tables[-1].column_names != tables[0].column_names:
            raise CelmError(f"{path} and {paths[0]} have different columns")
    try:
        return pa.concat_tables(tables, promote_options="permissive")
    except pa.ArrowException as error:
        raise CelmError(f"a column of {paths[0]} and {paths[-1]} has different types") from error


def read_texts(table: Any, name: str, source_name: str) -> list[str]:
    """Return a column of texts; raise CelmError if it is missing, has other values, or a row has no text."""
    if name not in table.column_names:
        raise CelmError(
            f"{source_name} has no column '{name}'",
            f"set dataset.text_column; it has: {', '.join(table.column_names[:20])}",
        )
    if not _is_text(table.column(name).type):
        raise CelmError(
            f"column '{name}' of {source_name} has no texts: its values are {table.column(name).type}",
            "set dataset.text_column to another column",
        )
    texts = [text or "" for text in _to_texts(table, name)]
    empty = [row for row, text in enumerate(texts, start=1) if not text.strip()]
    if empty:
        raise CelmError(
            f"column '{name}' of {source_name} has no text in {len(empty):,} of {len(texts):,} rows",
            "remove these rows",
        )
    return texts


@dataclass(frozen=True)
class FeatureEncoder:
    """The encoding of columns as features, with statistics of the training rows.

    A column of numbers is standardised; a missing value is 0. A column of texts becomes one column for each text of the
    training rows, 1 or 0.
    """

    scales: dict[str, tuple[float, float]]
    """Column of numbers to its mean and standard deviation."""
    texts: dict[str, tuple[str, ...]]
    """Column of texts to its values."""

    @classmethod
    def fit(cls, table: Any, columns: Sequence[str], source_name: str) -> FeatureEncoder:
        """Return the encoder of these columns with the statistics of `table`."""
        scales: dict[str, tuple[float, float]] = {}
        texts: dict[str, tuple[str, ...]] = {}
        for name in columns:
            if _is_text(table.column(name).type):
                values = tuple(sorted(text for text in set(_to_texts(table, name)) if text is not None))
                if len(values) > _MAX_TEXTS:
                    raise CelmError(
                        f"column '{name}' of {source_name} has {len(values)} different texts (at most {_MAX_TEXTS})",
                        f"remove the column; or classify its texts: dataset.text_column={name} and model hf:NAME",
                    )
                texts[name] = values
                continue
            numbers = _to_numbers(table, name, source_name)
            finite = numbers[~np.isnan(numbers)]
            # A constant column is not scaled.
            scales[name] = (float(finite.mean()), float(finite.std()) or 1.0) if len(finite) else (0.0, 1.0)
        return cls(scales, texts)

    def encode(self, table: Any, source_name: str) -> NDArray[np.float32]:
        """Return the features of all rows `[n, features]`."""
        columns = []
        for name in table.column_names:
            if name in self.scales:
                mean, std = self.scales[name]
                columns.append(np.nan_to_num((_to_numbers(table, name, source_name) - mean) / std, nan=0.0))
            elif name in self.texts:
                values = np.array(_to_texts(table, name), dtype=object)
                columns += [(values == text).astype(np.float64) for text in self.texts[name]]
        return np.stack(columns, axis=1).astype(np.float32)


def _is_text(column_type: Any) -> bool:
    if pa.types.is_dictionary(column_type):
        column_type = column_type.value_type
    return bool(pa.types.is_string(column_type) or pa.types.is_large_string(column_type))


def _to_texts(table: Any, name: str) -> list[str | None]:
    values: list[str | None] = table.column(name).cast(pa.string()).to_pylist()
    return values


def _to_numbers(table: Any, name: str, source_name: str) -> NDArray[np.float64]:
    """Return a column as numbers; a missing value is NaN."""
    column = table.column(name)
    kind = column.type
    is_number = pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_boolean(kind)
    if not (is_number or pa.types.is_null(kind)):
        raise CelmError(f"column '{name}' of {source_name} must contain numbers or text, not {kind}")
    filled = pc.fill_null(column.cast(pa.float64()), float("nan"))
    numbers = np.asarray(filled.to_numpy(), dtype=np.float64)
    if np.isinf(numbers).any():
        raise CelmError(f"column '{name}' of {source_name} has an infinite value")
    return numbers
