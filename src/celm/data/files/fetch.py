"""From what is known about a dataset to its files on this machine: found, or else downloaded."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from celm.base.errors import CelmError
from celm.base.files import explained, sync_folder
from celm.data.facts import Facts, Remote
from celm.data.files.download import Progress, download
from celm.data.files.locate import Found, data_root, find, find_in, looked_for


def available(facts: Facts) -> Found:
    """The dataset's files; downloaded, with a bar on the terminal, if they are not on this machine."""
    found = find(facts)
    if found is not None:
        return found
    with bar(facts.name) as progress:
        return fetch(facts, progress)


def fetch(facts: Facts, progress: Progress | None = None) -> Found:
    """Download into `CELM_DATA` (default: the cache)."""
    folder = data_root() / facts.name
    if not facts.can_download:
        raise CelmError(
            f"dataset '{facts.name}' not found: looked for {looked_for(facts)}; it cannot be downloaded",
            f"set CELM_DATA to a folder with {facts.name}/ in it",
        )
    try:
        if facts.remote:
            fetch_files(facts, folder, progress)
        else:
            fetch_from_hub(facts, folder)
    except CelmError as error:
        raise CelmError(
            f"dataset '{facts.name}' not found: looked for {looked_for(facts)}; {error}",
            f"run `celm data get {facts.name}` when online, or set CELM_DATA to where {facts.name}/ is",
        ) from error
    found = find_in(folder, facts.forms)
    if found is None:
        raise CelmError(f"what was downloaded to {folder} does not have the files of '{facts.name}'")
    return found


def fetch_files(facts: Facts, folder: Path, progress: Progress | None) -> None:
    total = sum(file.size for file in facts.remote)
    before = 0
    for file in facts.remote:
        download(mirrored(file, facts.name), folder / file.name, shifted(progress, before, total))
        before += file.size


def shifted(progress: Progress | None, before: int, total: int) -> Progress | None:
    """Progress of one file as progress of them all."""
    return None if progress is None else lambda done, _: progress(before + done, total)


def mirrored(file: Remote, dataset: str) -> Remote:
    """`CELM_MIRROR` is an address below which each dataset's files lie as in `CELM_DATA`."""
    mirror = os.environ.get("CELM_MIRROR", "").rstrip("/")
    return replace(file, url=f"{mirror}/{dataset}/{file.name}") if mirror else file


def fetch_from_hub(facts: Facts, folder: Path) -> None:
    """All parquet files of a Hugging Face repository, into a folder beside, then moved to their place."""
    from huggingface_hub import snapshot_download

    beside = folder.with_name(f"{folder.name}.part")
    with explained(beside, "write to"):
        beside.mkdir(parents=True, exist_ok=True)
    try:
        snapshot_download(
            facts.hub or "",
            repo_type="dataset",
            allow_patterns=["*.parquet"],
            local_dir=beside,
            etag_timeout=20,
        )
    except (
        Exception
    ) as error:  # The hub's client raises whatever its transport does; all of it is the network's.
        reason = re.sub(r"\s+", " ", str(error)).strip()[:200]
        raise CelmError(f"cannot download {facts.hub} from the Hugging Face hub: {reason}") from error
    with explained(folder, "write to"):
        folder.mkdir(parents=True, exist_ok=True)
        for path in sorted(beside.rglob("*.parquet")):
            path.replace(folder / path.name)
        sync_folder(folder)


@contextmanager
def bar(name: str) -> Iterator[Progress | None]:
    """A progress bar on the terminal's error stream; nothing where that is not a terminal."""
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, TextColumn, TimeRemainingColumn
    from rich.progress import Progress as Bars

    console = Console(stderr=True)
    if not console.is_terminal:
        yield None
        return
    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TimeRemainingColumn())
    with Bars(*columns, console=console) as bars:
        task = bars.add_task(f"downloading {name}", total=None)
        yield lambda done, total: bars.update(task, completed=done, total=total)
