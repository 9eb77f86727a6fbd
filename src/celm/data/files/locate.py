"""Search for the files of a dataset: first in `CELM_DATA`, then in system packages."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from celm.base.errors import CelmError
from celm.base.files import os_errors_as_celm_error
from celm.data.dataset_info import DatasetInfo, FileLayout
from celm.data.files.parquet import find_missing_shard

SYSTEM_DATASETS = Path("/usr/share/datasets")
"""Folder into which Debian's `dataset-*` packages install."""


@dataclass(frozen=True)
class LocatedFiles:
    """The files of a dataset, by part, such as `train_images`."""

    folder: Path
    kind: str
    files: Mapping[str, tuple[Path, ...]]

    def path(self, part: str) -> Path:
        """Return the file of a part that has one file."""
        return self.files[part][0]

    @property
    def all_files(self) -> tuple[Path, ...]:
        """Return the files of all parts, each once."""
        return tuple(dict.fromkeys(path for paths in self.files.values() for path in paths))


def cache_root() -> Path:
    """Return the folder for downloads and decoded images, unless `CELM_DATA` or `CELM_CACHE` names another."""
    base = os.environ.get("XDG_CACHE_HOME", "")
    # The XDG specification requires that a relative path is ignored.
    return (Path(base) if Path(base).is_absolute() else Path("~/.cache").expanduser()) / "celm"


def data_root() -> Path:
    """Return the folder that holds one folder per dataset and receives downloads."""
    data_dir = os.environ.get("CELM_DATA", "")
    return Path(data_dir).expanduser() if data_dir else cache_root()


def _search_paths(info: DatasetInfo) -> list[Path]:
    """Return the folders to search, in order."""
    system_paths = [SYSTEM_DATASETS / info.system_package] if info.system_package else []
    return [data_root() / info.name, *system_paths]


def locate(info: DatasetInfo) -> LocatedFiles | None:
    """Return the files of a dataset, or None if they are not on this machine."""
    for folder in _search_paths(info):
        located = locate_in(folder, info.layouts)
        if located is not None:
            return located
    return None


def locate_in(folder: Path, layouts: Sequence[FileLayout]) -> LocatedFiles | None:
    """Return the files of the first layout whose parts are all in `folder`, or None."""
    with os_errors_as_celm_error(folder, "read"):
        if not folder.is_dir():
            return None
        for layout in layouts:
            files = {part: match_files(folder, patterns) for part, patterns in layout.parts.items()}
            if not all(files.values()):
                continue
            for part, paths in files.items():
                if (missing := find_missing_shard(paths)) is not None:
                    raise CelmError(f"{folder} is incomplete: the {part} file {missing} is missing")
            return LocatedFiles(folder, layout.kind, files)
    return None


def match_files(folder: Path, patterns: Sequence[str]) -> tuple[Path, ...]:
    """Return the sorted files that match the first pattern with any match; hidden files do not count."""
    for pattern in patterns:
        # Sorted: the order of rows must not depend on the file system.
        paths = sorted(p for p in folder.glob(pattern) if p.is_file() and not _has_hidden_part(p, folder))
        if paths:
            return tuple(paths)
    return ()


def _has_hidden_part(path: Path, folder: Path) -> bool:
    return any(part.startswith(".") for part in path.relative_to(folder).parts)


def describe_search(info: DatasetInfo) -> str:
    """Return the searched file names and folders as text for an error message."""
    file_names = " or ".join(next(iter(layout.parts.values()))[0] for layout in info.layouts)
    return f"{file_names} in {' and '.join(str(path) for path in _search_paths(info))}"
