"""Lock files: a folder belongs to one process at a time."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from filelock import FileLock, Timeout

from celm.base.errors import CelmError
from celm.base.files import PRIVATE_FILE, os_errors_as_celm_error


class InUseError(CelmError):
    """The error for a lock that another process holds."""


@contextmanager
def exclusive(
    path: Path, timeout: float = 0, resource: Path | None = None, private: bool = False
) -> Iterator[None]:
    """Hold the lock file `path` while the block runs.

    `timeout` is the number of seconds to wait for another process; -1 waits without limit. `resource` is the path that
    the lock protects and that errors name; by default the folder of `path`. Only the owner may open a `private` lock
    file. The operating system releases the lock when the process ends, even if the process is killed.
    """
    resource = path.parent if resource is None else resource
    with os_errors_as_celm_error(resource, "lock"):
        lock = FileLock(path, mode=PRIVATE_FILE) if private else FileLock(path)
        try:
            lock.acquire(timeout=timeout)
        except Timeout as error:
            raise InUseError(f"{resource} is in use by another process") from error
    try:
        yield
    finally:
        lock.release()


def is_locked(path: Path) -> bool:
    """Check whether another process holds the lock file `path` now."""
    if not path.exists():
        return False
    try:
        with exclusive(path):
            return False
    except InUseError:
        return True
