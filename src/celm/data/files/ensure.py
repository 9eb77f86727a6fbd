"""The files of a dataset: located on this machine, or else downloaded."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from celm.base.errors import CelmError
from celm.base.files import fsync_directory, os_errors_as_celm_error
from celm.base.text import single_line, truncate
from celm.data.dataset_info import DatasetInfo, RemoteFile
from celm.data.files.http import DownloadCallback, download_file
from celm.data.files.locate import LocatedFiles, data_root, describe_search, locate, locate_in


def ensure_files(info: DatasetInfo) -> LocatedFiles:
    """Return the dataset's files. If they are missing, download them with a progress bar."""
    located = locate(info)
    if located is not None:
        return located
    with _download_progress_bar(info.name) as progress:
        return download_files(info, progress)


def download_files(info: DatasetInfo, progress: DownloadCallback | None = None) -> LocatedFiles:
    """Download a dataset into `CELM_DATA` (default: the cache) and return its files."""
    folder = data_root() / info.name
    if not info.can_download:
        raise CelmError(
            f"dataset '{info.name}' not found: looked for {describe_search(info)}; it cannot be downloaded",
            f"set CELM_DATA to a folder that contains {info.name}/",
        )
    try:
        if info.remote_files:
            _download_remote_files(info, folder, progress)
        else:
            _download_from_hub(info, folder)
    except CelmError as error:
        raise CelmError(
            f"dataset '{info.name}' not found: looked for {describe_search(info)}; {error}",
            f"run `celm data get {info.name}` when online, or set CELM_DATA to a folder that contains {info.name}/",
        ) from error
    located = locate_in(folder, info.layouts)
    if located is None:
        raise CelmError(f"the download in {folder} does not contain the files of dataset '{info.name}'")
    return located


def _download_remote_files(info: DatasetInfo, folder: Path, progress: DownloadCallback | None) -> None:
    total = sum(file.size for file in info.remote_files)
    offset = 0
    for file in info.remote_files:
        file_progress = _offset_progress(progress, offset, total)
        download_file(_apply_mirror(file, info.name), folder / file.name, file_progress)
        offset += file.size


def _offset_progress(progress: DownloadCallback | None, offset: int, total: int) -> DownloadCallback | None:
    """Return a callback that reports the progress of one file as progress of all files."""
    return None if progress is None else lambda done, _: progress(offset + done, total)


def _apply_mirror(file: RemoteFile, dataset_name: str) -> RemoteFile:
    """Return `file` with its address on the mirror `CELM_MIRROR`, whose layout is that of `CELM_DATA`."""
    mirror = os.environ.get("CELM_MIRROR", "").rstrip("/")
    return replace(file, url=f"{mirror}/{dataset_name}/{file.name}") if mirror else file


def _download_from_hub(info: DatasetInfo, folder: Path) -> None:
    """Download the parquet files of a Hugging Face repository to a folder beside `folder`, then move them."""
    temporary = folder.with_name(f"{folder.name}.part")
    fetch_parquet_files(info.hf_repo or "", temporary)
    with os_errors_as_celm_error(folder, "write to"):
        folder.mkdir(parents=True, exist_ok=True)
        for path in sorted(temporary.rglob("*.parquet")):
            path.replace(folder / path.name)
        fsync_directory(folder)


def fetch_parquet_files(repo: str, folder: Path, revision: str | None = None) -> None:
    """Download the parquet files of a Hugging Face dataset repository to `folder`, below their folders there."""
    from huggingface_hub import snapshot_download

    with os_errors_as_celm_error(folder, "write to"):
        folder.mkdir(parents=True, exist_ok=True)
    try:
        snapshot_download(
            repo,
            repo_type="dataset",
            revision=revision,
            allow_patterns=["*.parquet"],
            local_dir=folder,
            etag_timeout=20,
        )
    except Exception as error:  # the hub's client passes on any error of its transport
        reason = truncate(single_line(str(error)), 200)
        raise CelmError(f"cannot download {repo} from the Hugging Face hub: {reason}") from error


@contextmanager
def _download_progress_bar(name: str) -> Iterator[DownloadCallback | None]:
    """Yield the callback of a progress bar on stderr, or None if stderr is not a terminal."""
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

    console = Console(stderr=True)
    if not console.is_terminal:
        yield None
        return
    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console) as display:
        task = display.add_task(f"downloading {name}", total=None)
        yield lambda done, total: display.update(task, completed=done, total=total)
