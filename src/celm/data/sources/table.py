"""The user's own table: a CSV or parquet file with one row per sample."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, ClassVar

import numpy as np
import torch
from pydantic import Field
from torch import Tensor

from celm.base.errors import CelmError
from celm.base.files import os_errors_as_celm_error
from celm.data.client_names import check_client_names
from celm.data.dataset import Dataset, DatasetSource, Defaults, hold_out
from celm.data.files.locate import match_files
from celm.data.files.parts import split_parts
from celm.data.files.tables import TABLE_SUFFIXES, FeatureEncoder, read_frame, read_texts


@dataclass(frozen=True)
class Table(DatasetSource):
    """Your own table: CSV or parquet with a column `label`.

    The other columns are features. A column of numbers is standardised; a missing value is 0. A column of texts becomes
    one column per text. With `text_column`, the inputs are the texts of this column alone, for a model `hf:NAME`.
    `path` is a file, or a folder with `train*` and `test*`. Without a test set, one fifth of every class of every
    client is held out, the same for every run. A column `client` names the clients of the natural split.
    """

    path: str
    """File, or folder of files."""
    label_column: str = "label"
    """Column with the class."""
    owner_column: str = "client"
    """Column with the client of each row, for the `natural` split."""
    text_column: str | None = None
    """Column with the texts to classify. None: the inputs are features."""
    tokenizer: str | None = None
    """Folder or hub name of the tokenizer of `text_column`; by default that of the model."""
    max_tokens: Annotated[int, Field(ge=1)] = 128
    """Largest number of tokens of a text. A longer text loses its end."""

    defaults: ClassVar[Defaults] = Defaults(model="mlp", rounds=100)

    def load(self) -> Dataset:
        path = Path(self.path).expanduser()
        train_files, test_files = self._find_files(path)
        train = read_frame(train_files)
        test = read_frame(test_files) if test_files else None
        for table in (train, test):
            if table is not None and self.label_column not in table.column_names:
                raise CelmError(
                    f"{path} has no column '{self.label_column}'",
                    f"set dataset.label_column; it has: {', '.join(table.column_names[:20])}",
                )
        classes, labels = _encode_labels(path, self.label_column, train)
        owners = self._read_owners(path, train)
        if test is None:
            groups = labels if owners is None else _group_ids(owners) * len(classes) + labels
            rows, test_rows = hold_out(groups)
            train, test = train.take(rows), train.take(test_rows)
            labels, test_labels = labels[rows], labels[test_rows]
            owners = None if owners is None else [owners[row] for row in rows]
        else:
            missing = sorted({*train.column_names} - {*test.column_names, self.owner_column})
            if missing:
                raise CelmError(f"{path}: the test data has no column '{missing[0]}'")
            test = test.select([name for name in train.column_names if name in test.column_names])
            _, test_labels = _encode_labels(path, self.label_column, test, classes)
        if not len(test_labels):
            raise CelmError(f"{path} has too few rows for a test set")
        train_inputs, test_inputs = (
            self._encode_features(path, train, test)
            if self.text_column is None
            else self._encode_texts(path, self.text_column, train, test)
        )
        return Dataset(
            name="table",
            train_inputs=train_inputs,
            train_labels=torch.from_numpy(labels),
            test_inputs=test_inputs,
            test_labels=torch.from_numpy(test_labels),
            classes=classes,
            client_ids=None if owners is None else tuple(owners),
        )

    def _encode_features(self, path: Path, train: Any, test: Any) -> tuple[Tensor, Tensor]:
        columns = [name for name in train.column_names if name not in (self.label_column, self.owner_column)]
        encoder = FeatureEncoder.fit(train, columns, str(path))
        if not encoder.scales and not any(encoder.texts.values()):
            raise CelmError(f"{path} has no columns besides label and client")
        return (
            torch.from_numpy(encoder.encode(train, str(path))),
            torch.from_numpy(encoder.encode(test, str(path))),
        )

    def _encode_texts(self, path: Path, column: str, train: Any, test: Any) -> tuple[Tensor, Tensor]:
        texts = [read_texts(table, column, str(path)) for table in (train, test)]
        if self.tokenizer is None:
            raise CelmError(
                "dataset.text_column needs a tokenizer",
                "add --model hf:NAME, a folder or a model of the hub, or set dataset.tokenizer",
            )
        # Importing it takes a second, because it imports the models of transformers.
        from celm.data.files.texts import encode_texts, load_tokenizer

        train_tokens, test_tokens = encode_texts(load_tokenizer(self.tokenizer), texts, self.max_tokens)
        return torch.from_numpy(train_tokens), torch.from_numpy(test_tokens)

    def _find_files(self, path: Path) -> tuple[list[Path], list[Path]]:
        with os_errors_as_celm_error(path, "read"):
            if path.is_file():
                if path.suffix not in TABLE_SUFFIXES:
                    raise CelmError(f"{path} is not a .csv or .parquet file")
                return [path], []
            if not path.is_dir():
                raise CelmError(
                    f"cannot read {path}: no such file or folder", "set dataset.path to your data"
                )
            for suffix in TABLE_SUFFIXES:
                if files := match_files(path, (f"*{suffix}", f"*/*{suffix}")):
                    return split_parts(path, files)
        raise CelmError(f"{path} has no .csv or .parquet files")

    def _read_owners(self, path: Path, table: Any) -> list[str] | None:
        if self.owner_column not in table.column_names:
            if self.owner_column == "client":
                return None
            raise CelmError(f"{path} has no column '{self.owner_column}'")
        values = table.column(self.owner_column).to_pylist()
        if any(not isinstance(value, int | str) for value in values):
            raise CelmError(
                f"column '{self.owner_column}' of {path} must have a name or a number in each row"
            )
        return list(check_client_names(values, self.owner_column, path))


def _group_ids(names: Sequence[str]) -> np.ndarray[Any, np.dtype[np.int64]]:
    return np.unique(np.array(names), return_inverse=True)[1].astype(np.int64)


def _encode_labels(
    path: Path, column: str, table: Any, classes: tuple[str, ...] | None = None
) -> tuple[tuple[str, ...], np.ndarray[Any, np.dtype[np.int64]]]:
    """Return the names of the classes, and the labels as class indices; `classes` are those of the training rows."""
    values = table.column(column).to_pylist()
    if any(not isinstance(value, int | str) for value in values):
        raise CelmError(f"column '{column}' of {path} must have an integer or a text in each row")
    if len({isinstance(value, str) for value in values}) > 1:
        raise CelmError(f"column '{column}' of {path} mixes texts and numbers")
    names = classes or tuple(str(value) for value in sorted(set(values)))
    if len(names) < 2:
        raise CelmError(f"{path} has fewer than two classes in column '{column}'")
    index = {name: k for k, name in enumerate(names)}
    unknown = sorted({str(value) for value in values} - set(index))
    if unknown:
        raise CelmError(f"{path}: the test data has a class '{unknown[0]}' that is not in the training data")
    return names, np.array([index[str(value)] for value in values], dtype=np.int64)
