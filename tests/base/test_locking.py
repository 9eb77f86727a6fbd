"""A lock file keeps other processes out, and ends with its process."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from celm.base.errors import CelmError
from celm.base.locking import InUseError, exclusive, is_locked

HOLDER = """
import sys
from filelock import FileLock
with FileLock(sys.argv[1]):
    print("locked", flush=True)
    sys.stdin.read()
"""


@pytest.fixture
def holder(tmp_path: Path) -> Iterator[subprocess.Popen[bytes]]:
    """Another process that holds the lock file."""
    command = [sys.executable, "-c", HOLDER, tmp_path / "some.lock"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"locked\n"
        yield process
        process.kill()


def test_a_lock_of_another_process_is_an_error_that_names_the_folder(
    tmp_path: Path, holder: subprocess.Popen[bytes]
) -> None:
    path = tmp_path / "some.lock"
    assert is_locked(path)
    with pytest.raises(InUseError, match=tmp_path.name), exclusive(path):
        pass


def test_the_timeout_is_waited_for(tmp_path: Path, holder: subprocess.Popen[bytes]) -> None:
    start = time.monotonic()
    with pytest.raises(InUseError), exclusive(tmp_path / "some.lock", timeout=0.3):
        pass
    assert time.monotonic() - start >= 0.3


def test_a_lock_ends_with_the_process_that_holds_it(tmp_path: Path, holder: subprocess.Popen[bytes]) -> None:
    holder.kill()
    with exclusive(tmp_path / "some.lock", timeout=60):
        assert is_locked(tmp_path / "some.lock")
    assert not is_locked(tmp_path / "some.lock")


def test_a_lock_ends_with_an_error_in_its_block(tmp_path: Path) -> None:
    with pytest.raises(KeyError), exclusive(tmp_path / "some.lock"):
        raise KeyError
    assert not is_locked(tmp_path / "some.lock")


def test_what_cannot_be_locked_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "some.lock").mkdir()
    with pytest.raises(CelmError, match="cannot lock"), exclusive(tmp_path / "some.lock"):
        pass
    assert not is_locked(tmp_path / "absent.lock")
