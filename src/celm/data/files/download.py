"""Fetch one file: resumed where it can be, checked before it gets its name, never half there.

The bytes go to `NAME.part` beside the target. When they are all there and the checksum is right, they are
synced and renamed, so a file with the right name is always whole.
"""

from __future__ import annotations

import http.client
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO
from urllib.error import HTTPError, URLError
from urllib.parse import urlsplit
from urllib.request import (
    HTTPDefaultErrorHandler,
    HTTPErrorProcessor,
    HTTPHandler,
    HTTPRedirectHandler,
    HTTPSHandler,
    OpenerDirector,
    ProxyHandler,
    Request,
)

from filelock import FileLock, Timeout

from celm.base.errors import CelmError
from celm.base.files import explained, sync_folder
from celm.data.facts import Remote
from celm.data.files.checksum import matches_digest

Progress = Callable[[int, int], None]
"""Called with bytes done and bytes in all."""

CONNECT_SECONDS = 20.0
"""No answer, or no byte, for so long is a broken connection."""
LOCK_SECONDS = 900.0
CHUNK = 1 << 18
BROKEN = (URLError, http.client.HTTPException, TimeoutError, ConnectionError)


class BrokenConnectionError(Exception):
    """The connection broke; what has arrived is kept."""


def download(
    remote: Remote, target: Path, progress: Progress | None = None, timeout: float = CONNECT_SECONDS
) -> Path:
    """Bring `remote` to `target`; on failure, what has arrived is kept for next time."""
    if urlsplit(remote.url).scheme not in ("http", "https"):
        raise CelmError(f"cannot download {remote.url}: only http and https addresses are used")
    with explained(target.parent, "write to"):
        target.parent.mkdir(parents=True, exist_ok=True)
    part = target.with_name(f"{target.name}.part")
    # Two runs that start together must not write into one another's partial file.
    lock = FileLock(target.with_name(f".{target.name}.lock"))
    with explained(target, "write"):
        try:
            held = lock.acquire(timeout=LOCK_SECONDS)
        except Timeout as error:
            raise CelmError(
                f"cannot download {target}: another process has been at it for too long"
            ) from error
        with held:
            if not (target.is_file() and matches_digest(target, remote.digest)):
                fetch_checked(remote, part, progress or ignore, timeout)
                part.replace(target)
                sync_folder(target.parent)
    return target


def ignore(done: int, total: int) -> None:
    """Progress that nobody watches."""


def fetch_checked(remote: Remote, part: Path, progress: Progress, timeout: float) -> None:
    resumed = size_of(part) > 0
    fetch_whole(remote, part, progress, timeout)
    if matches_digest(part, remote.digest):
        return
    part.unlink()
    if resumed:
        # The old part may have been of another version of the file: once more, from nothing.
        fetch_checked(remote, part, progress, timeout)
        return
    raise CelmError(
        f"cannot download {remote.url}: the checksum of what arrived is wrong", "try again, or another mirror"
    )


def fetch_whole(remote: Remote, part: Path, progress: Progress, timeout: float) -> None:
    """Until all bytes are there; a connection that breaks is taken up again as long as it brings some."""
    if size_of(part) > remote.size:
        part.unlink()
    while (before := size_of(part)) < remote.size:
        try:
            fetch_some(remote, part, progress, timeout)
        except BrokenConnectionError as broken:
            if size_of(part) <= before:
                raise CelmError(f"cannot download {remote.url}: {broken}") from broken
    progress(remote.size, remote.size)


def fetch_some(remote: Remote, part: Path, progress: Progress, timeout: float) -> None:
    """One request, from where the partial file ends."""
    start = size_of(part)
    request = Request(remote.url, headers={"User-Agent": "celm", "Accept-Encoding": "identity"})  # noqa: S310 - checked
    if start:
        request.add_header("Range", f"bytes={start}-")
    try:
        with opener().open(request, timeout=timeout) as answer:
            if start and not continues(answer, start):
                start = 0  # the server sends it all again
            with part.open("r+b" if start else "wb") as file:
                file.seek(start)
                file.truncate()
                receive(answer, file, start, remote, progress)
    except HTTPError as error:
        error.close()
        if error.code == http.client.REQUESTED_RANGE_NOT_SATISFIABLE and start:
            part.unlink()
            return
        raise CelmError(
            f"cannot download {remote.url}: the server answers {error.code} {error.reason}"
        ) from error
    except BROKEN as error:
        cause = getattr(error, "reason", None) or error
        reason = getattr(cause, "strerror", None) or str(cause) or type(cause).__name__
        raise BrokenConnectionError(" ".join(reason.split())) from error


def continues(answer: http.client.HTTPResponse, start: int) -> bool:
    said = re.match(r"bytes (\d+)-", answer.headers.get("Content-Range", ""))
    return answer.status == http.client.PARTIAL_CONTENT and said is not None and int(said[1]) == start


def receive(
    answer: http.client.HTTPResponse, file: BinaryIO, start: int, remote: Remote, progress: Progress
) -> None:
    done = start
    try:
        while piece := read_some(answer):
            done += len(piece)
            if done > remote.size:
                file.truncate(0)
                raise CelmError(
                    f"cannot download {remote.url}: it is larger than the {remote.size} bytes expected"
                )
            file.write(piece)
            progress(done, remote.size)
    finally:
        file.flush()
        os.fsync(file.fileno())
    if done < remote.size:
        raise BrokenConnectionError(f"the connection broke after {done} of {remote.size} bytes")


def read_some(answer: http.client.HTTPResponse) -> bytes:
    """Apart from writing, so that a failing network and a full disk are not taken for one another."""
    try:
        return answer.read(CHUNK)
    except (OSError, http.client.HTTPException) as error:
        raise BrokenConnectionError(f"the connection broke ({' '.join(str(error).split())})") from error


def size_of(path: Path) -> int:
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0


def opener() -> OpenerDirector:
    """Speaks http and https only, so that no redirection leads to a local file or to ftp."""
    director = OpenerDirector()
    for handler in (
        ProxyHandler(),
        HTTPHandler(),
        HTTPSHandler(),
        HTTPDefaultErrorHandler(),
        HTTPRedirectHandler(),
        HTTPErrorProcessor(),
    ):
        director.add_handler(handler)
    return director
