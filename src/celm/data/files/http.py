"""Download one file over HTTP: resumed after an interruption, verified before it gets its name, never half written.

The bytes go to `NAME.part` beside the target. Once all have arrived and the digest is right, the file is synced and
renamed. So a file under its final name is always complete. An interrupted transfer continues where it stopped, by a
range request: the largest file, EMNIST's archive, has 562 MB. Libraries made for downloads, such as pooch, start again.

Digests are written `sha256:...` or `content:...`, the SHA-256 of the content of a `.gz`.
"""

from __future__ import annotations

import gzip
import hashlib
import http.client
import os
import re
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO, cast
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

from celm.base.errors import CelmError
from celm.base.files import fsync_directory, os_errors_as_celm_error
from celm.base.locking import exclusive
from celm.base.text import single_line
from celm.data.dataset_info import RemoteFile

DownloadCallback = Callable[[int, int], None]
"""Called with the number of bytes received so far and the total."""

_TIMEOUT_SECONDS = 20.0
"""A connection that delivers no byte for this time counts as broken."""
_LOCK_SECONDS = 900.0
_DOWNLOAD_CHUNK_BYTES = 1 << 18
_HASH_CHUNK_BYTES = 1 << 20
_NETWORK_ERRORS = (URLError, http.client.HTTPException, TimeoutError, ConnectionError)


class _BrokenConnectionError(Exception):
    """The error for a broken connection; the partial file keeps the bytes received so far."""


def download_file(
    remote: RemoteFile,
    target: Path,
    progress: DownloadCallback | None = None,
    timeout: float = _TIMEOUT_SECONDS,
) -> Path:
    """Download `remote` to `target`, unless it exists with the right digest. A failure leaves the partial file."""
    if urlsplit(remote.url).scheme not in ("http", "https"):
        raise CelmError(f"cannot download {remote.url}: only http and https addresses are supported")
    with os_errors_as_celm_error(target.parent, "write to"):
        target.parent.mkdir(parents=True, exist_ok=True)
    part = target.with_name(f"{target.name}.part")
    # Two processes that start together must not write to the same partial file.
    lock_file = target.with_name(f".{target.name}.lock")
    with os_errors_as_celm_error(target, "write"), exclusive(lock_file, _LOCK_SECONDS, resource=target):
        if not (target.is_file() and matches_digest(target, remote.digest)):
            _download_verified(remote, part, progress or _no_progress, timeout)
            part.replace(target)
            fsync_directory(target.parent)
    return target


def matches_digest(path: Path, expected: str) -> bool:
    """Return whether a file has the digest `expected`, written `kind:value`."""
    kind, _, value = expected.partition(":")
    return _file_digest(path, kind) == value


def _file_digest(path: Path, kind: str) -> str | None:
    """Return the digest of a file, or None for the content of a damaged archive."""
    hasher = hashlib.sha256()
    with os_errors_as_celm_error(path, "read"), path.open("rb") as file:
        compressed = kind == "content" and file.read(2) == b"\x1f\x8b"
        file.seek(0)
        stream = cast(BinaryIO, gzip.GzipFile(fileobj=file)) if compressed else file
        try:
            while piece := stream.read(_HASH_CHUNK_BYTES):
                hasher.update(piece)
        except (gzip.BadGzipFile, EOFError, zlib.error):
            return None
    return hasher.hexdigest()


def _no_progress(done: int, total: int) -> None:
    """Ignore the progress of a download."""


def _download_verified(remote: RemoteFile, part: Path, progress: DownloadCallback, timeout: float) -> None:
    resumed = _existing_size(part) > 0
    _download_all(remote, part, progress, timeout)
    if matches_digest(part, remote.digest):
        return
    part.unlink()
    if resumed:
        # The old part may be of another version of the file, so try once more from the start.
        _download_verified(remote, part, progress, timeout)
        return
    raise CelmError(
        f"cannot download {remote.url}: the received file has a wrong checksum",
        "try again, or another mirror",
    )


def _download_all(remote: RemoteFile, part: Path, progress: DownloadCallback, timeout: float) -> None:
    """Receive all bytes. A broken connection is resumed as long as each attempt brings new bytes."""
    if _existing_size(part) > remote.size:
        part.unlink()
    while (previous_size := _existing_size(part)) < remote.size:
        try:
            _request_range(remote, part, progress, timeout)
        except _BrokenConnectionError as broken:
            if _existing_size(part) <= previous_size:
                raise CelmError(f"cannot download {remote.url}: {broken}") from broken
    progress(remote.size, remote.size)


def _request_range(remote: RemoteFile, part: Path, progress: DownloadCallback, timeout: float) -> None:
    """Send one request for the bytes after the end of the partial file."""
    start = _existing_size(part)
    request = Request(remote.url, headers={"User-Agent": "celm", "Accept-Encoding": "identity"})  # noqa: S310 - checked
    if start:
        request.add_header("Range", f"bytes={start}-")
    try:
        with _make_opener().open(request, timeout=timeout) as response:
            if start and not _is_partial_response(response, start):
                start = 0  # the server sends the complete file
            with part.open("r+b" if start else "wb") as file:
                file.seek(start)
                file.truncate()
                _receive_body(response, file, start, remote, progress)
    except HTTPError as error:
        error.close()
        if error.code == http.client.REQUESTED_RANGE_NOT_SATISFIABLE and start:
            part.unlink()
            return
        raise CelmError(
            f"cannot download {remote.url}: the server answers {error.code} {error.reason}"
        ) from error
    except _NETWORK_ERRORS as error:
        cause = getattr(error, "reason", None) or error
        reason = getattr(cause, "strerror", None) or str(cause) or type(cause).__name__
        raise _BrokenConnectionError(single_line(reason)) from error


def _is_partial_response(response: http.client.HTTPResponse, start: int) -> bool:
    content_range = re.match(r"bytes (\d+)-", response.headers.get("Content-Range", ""))
    return (
        response.status == http.client.PARTIAL_CONTENT
        and content_range is not None
        and int(content_range[1]) == start
    )


def _receive_body(
    response: http.client.HTTPResponse,
    file: BinaryIO,
    start: int,
    remote: RemoteFile,
    progress: DownloadCallback,
) -> None:
    done = start
    try:
        while piece := _read_chunk(response):
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
        raise _BrokenConnectionError(f"the connection broke after {done} of {remote.size} bytes")


def _read_chunk(response: http.client.HTTPResponse) -> bytes:
    """Read from the network only, so that network errors and disk errors stay distinct."""
    try:
        return response.read(_DOWNLOAD_CHUNK_BYTES)
    except (OSError, http.client.HTTPException) as error:
        raise _BrokenConnectionError(f"the connection broke ({single_line(str(error))})") from error


def _existing_size(path: Path) -> int:
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0


def _make_opener() -> OpenerDirector:
    """Return an opener for http and https only, so that no redirect leads to a local file or to ftp."""
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
