"""Files of the training set and of the test set, by their names."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from celm.base.errors import CelmError
from celm.data.files.parquet import find_missing_shard


def split_parts(root: Path, files: Sequence[Path]) -> tuple[list[Path], list[Path]]:
    """Return the training files and the test files, `test*`; without `train*`, all others are training files."""
    test_files = [path for path in files if path.name.startswith("test")]
    train_files = [path for path in files if path.name.startswith("train")]
    if not train_files:
        train_files = [path for path in files if path not in test_files]
    if not train_files:
        raise CelmError(f"{root} has test files but no train*{files[0].suffix}")
    for part in (train_files, test_files):
        if (missing := find_missing_shard(part)) is not None:
            raise CelmError(f"{root} is incomplete: the file {missing} is missing")
    return train_files, test_files
