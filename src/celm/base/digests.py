"""SHA-256 of bytes, as text."""

from __future__ import annotations

import hashlib


def bytes_sha256(content: bytes) -> str:
    """Return the SHA-256 of bytes in hexadecimal.

    >>> bytes_sha256(b"abc")[:16]
    'ba7816bf8f01cfea'
    """
    return hashlib.sha256(content).hexdigest()
