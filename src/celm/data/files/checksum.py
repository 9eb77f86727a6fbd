"""Digests of files, written `sha256:...`, `md5:...` or `content:...` (SHA-256 of what is inside a `.gz`)."""

from __future__ import annotations

import gzip
import hashlib
import zlib
from pathlib import Path
from typing import BinaryIO, cast

from celm.base.files import explained

CHUNK = 1 << 20


def matches_digest(path: Path, expected: str) -> bool:
    kind, _, value = expected.partition(":")
    return digest(path, kind) == value


def digest(path: Path, kind: str) -> str | None:
    """None where there is no such digest: the inside of a damaged archive."""
    # MD5 is all that some makers publish: it finds a damaged transfer, and is not used against forgery.
    total = hashlib.md5(usedforsecurity=False) if kind == "md5" else hashlib.sha256()
    with explained(path, "read"), path.open("rb") as file:
        compressed = kind == "content" and file.read(2) == b"\x1f\x8b"
        file.seek(0)
        stream = cast(BinaryIO, gzip.GzipFile(fileobj=file)) if compressed else file
        try:
            while piece := stream.read(CHUNK):
                total.update(piece)
        except (gzip.BadGzipFile, EOFError, zlib.error):
            return None
    return total.hexdigest()
