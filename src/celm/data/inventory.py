"""The datasets on this machine: listed, downloaded and checked, for `celm data`."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from celm.base.errors import CelmError
from celm.data.dataset_info import DatasetInfo
from celm.data.files import parquet
from celm.data.files.cifar_binary import CIFAR10, CIFAR100
from celm.data.files.ensure import download_files
from celm.data.files.http import DownloadCallback, matches_digest
from celm.data.files.idx import read_idx_sizes
from celm.data.files.locate import LocatedFiles, describe_search, locate
from celm.data.registry import datasets


class Origin(StrEnum):
    """How a dataset gets onto this machine."""

    BUNDLED = "bundled"
    DOWNLOAD = "download"
    MANUAL = "by hand"
    """It cannot be downloaded; the user copies the files."""
    USER = "yours"


class ChecksumStatus(StrEnum):
    """The result of comparing a file's digest with the known ones."""

    OK = "ok"
    UNKNOWN = "unknown"
    BAD = "bad"


@dataclass(frozen=True)
class DatasetStatus:
    """One row of `celm data list`; None means unknown."""

    name: str
    present: bool
    origin: Origin
    folder: Path | None = None
    train: int | None = None
    test: int | None = None
    shape: tuple[int, ...] | None = None
    classes: int | None = None
    download_size: int | None = None
    licence: str | None = None
    problem: str | None = None


@dataclass(frozen=True)
class CheckedFile:
    """One file of `celm data check`."""

    path: Path
    size: int
    checksum: ChecksumStatus


@dataclass(frozen=True)
class DatasetCheck:
    """The result of `celm data check` for one dataset."""

    name: str
    folder: Path
    kind: str
    files: tuple[CheckedFile, ...]
    rows: tuple[int, int] | None
    """(train, test) row counts, or None if they cannot be counted."""
    problems: tuple[str, ...]

    @property
    def ok(self) -> bool:
        """Whether there are no problems."""
        return not self.problems


def list_datasets() -> list[DatasetStatus]:
    """Return the status of every registered dataset."""
    return [_make_dataset_status(name, _find_dataset_info(name)) for name in datasets.names()]


def download_dataset(name: str, progress: DownloadCallback | None = None) -> Path:
    """Return the folder with the dataset's files; download them if they are missing."""
    info = _find_dataset_info(name)
    if info is None:
        raise CelmError(f"dataset '{name}' is read from your own folder and is not downloaded")
    if not info.layouts:
        return _bundled_folder(name)
    located = locate(info) or download_files(info, progress)
    return located.folder


def check_dataset(name: str) -> DatasetCheck:
    """Check digests and row counts of a dataset's files; a dataset that is not on this machine is an error."""
    info = _find_dataset_info(name)
    if info is None:
        raise CelmError(f"dataset '{name}' is read from your own folder; load it to check it")
    if not info.layouts:
        return DatasetCheck(name, _bundled_folder(name), "bundled", (), info.counts[0], ())
    located = locate(info)
    if located is None:
        hint = (
            f"run `celm data get {name}`"
            if info.can_download
            else f"set CELM_DATA to a folder that contains {info.name}/"
        )
        raise CelmError(f"dataset '{name}' is not on this machine: looked for {describe_search(info)}", hint)
    files = tuple(
        CheckedFile(path, path.stat().st_size, _verify_checksum(path, info)) for path in located.all_files
    )
    problems = [f"{file.path} has a wrong checksum" for file in files if file.checksum is ChecksumStatus.BAD]
    counts: tuple[int, int] | None = None
    try:
        counts = _count_rows(located)
    except CelmError as error:
        problems.append(str(error))
    if counts is not None and counts not in info.counts:
        train, test = info.counts[0]
        problems.append(f"{located.folder} has {counts[0]} + {counts[1]} rows, not {train} + {test}")
    return DatasetCheck(name, located.folder, located.kind, files, counts, tuple(problems))


def _find_dataset_info(name: str) -> DatasetInfo | None:
    info: DatasetInfo | None = getattr(datasets.load(name), "info", None)
    return info


def _make_dataset_status(name: str, info: DatasetInfo | None) -> DatasetStatus:
    if info is None:
        return DatasetStatus(name, present=False, origin=Origin.USER)
    folder, problem = None, None
    train, test = info.counts[0]
    try:
        located = locate(info) if info.layouts else None
        folder = _bundled_folder(name) if not info.layouts else located.folder if located else None
        train, test = (_count_rows(located) if located else None) or info.counts[0]
    except CelmError as error:
        problem = str(error)
    origin = Origin.BUNDLED if not info.layouts else Origin.DOWNLOAD if info.can_download else Origin.MANUAL
    return DatasetStatus(
        name,
        present=folder is not None,
        origin=origin,
        folder=folder,
        train=train,
        test=test,
        shape=info.shape,
        classes=info.classes,
        download_size=info.download_size,
        licence=info.licence,
        problem=problem,
    )


def _bundled_folder(name: str) -> Path:
    """Return the folder of a dataset that comes with celm or with scikit-learn."""
    own = Path(__file__).parent / "bundled" / name
    return own if own.is_dir() else _sklearn_data_dir()


def _sklearn_data_dir() -> Path:
    """Return the folder of scikit-learn's bundled data, without importing scikit-learn."""
    from importlib.util import find_spec

    spec = find_spec("sklearn")
    if spec is None or spec.origin is None:
        raise CelmError("scikit-learn is not installed", "pip install scikit-learn")
    return Path(spec.origin).parent / "datasets" / "data"


def _verify_checksum(path: Path, info: DatasetInfo) -> ChecksumStatus:
    """Compare a file with the known digests. A parquet file may come from any source, so a mismatch is not an error."""
    valid_digests = info.digests.get(path.name, ())
    if not valid_digests:
        return ChecksumStatus.UNKNOWN
    if any(matches_digest(path, digest) for digest in valid_digests):
        return ChecksumStatus.OK
    return ChecksumStatus.UNKNOWN if path.suffix == ".parquet" else ChecksumStatus.BAD


def _count_rows(located: LocatedFiles) -> tuple[int, int] | None:
    """Return (train, test) row counts from the headers of the files, or None for archives."""
    if located.kind == "parquet":
        train, test = (parquet.count_parquet_rows(located.files[part]) for part in ("train", "test"))
        return train, test
    if located.kind == "idx":
        train, test = (
            read_idx_sizes(located.path(part), rank=1)[0] for part in ("train_labels", "test_labels")
        )
        return train, test
    if located.kind == "batches":
        layout = CIFAR100 if CIFAR100.files[0] in located.files else CIFAR10
        train, test = (
            sum(located.path(name).stat().st_size for name in part) // layout.record_bytes
            for part in (layout.train_files, layout.test_files)
        )
        return train, test
    return None
