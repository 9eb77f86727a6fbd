"""Files that are never half written, and damage that is always detected."""

from __future__ import annotations

import errno
import os
import signal
import stat
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NoReturn

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from celm.base.errors import CelmError
from celm.base.files import (
    dump_json,
    read_tensors,
    read_text,
    tensor_digest,
    write_bytes,
    write_tensors,
    write_text,
)

TENSORS = {
    "weight": torch.arange(6, dtype=torch.float32).reshape(2, 3),
    "bias": torch.tensor([0.5], dtype=torch.bfloat16),
    "steps": torch.tensor(7),
    "mask": torch.tensor([True, False]),
    "empty": torch.zeros(0, 3),
}
ABOUT = {"round": 3, "name": "client-0 é", "nested": {"a": [1, 2.5, None]}}


def inside(folder: Path) -> list[str]:
    return sorted(entry.name for entry in folder.iterdir())


def same(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> bool:
    return set(one) == set(other) and all(
        one[name].dtype == other[name].dtype and torch.equal(one[name], other[name]) for name in one
    )


def test_written_text_is_read_back_and_replaces_the_old(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    for content in ("é\n", "", "x" * 100_000):
        write_text(path, content)
        assert read_text(path) == content
    assert inside(tmp_path) == ["a.txt"]


def test_a_new_file_has_the_mode_the_umask_gives(tmp_path: Path) -> None:
    old = os.umask(0o027)
    try:
        write_text(tmp_path / "a", "")
    finally:
        os.umask(old)
    assert stat.S_IMODE((tmp_path / "a").stat().st_mode) == 0o640


@pytest.mark.parametrize("step", ["fsync", "replace"])
@pytest.mark.parametrize("error", [OSError(errno.ENOSPC, "No space left on device"), KeyboardInterrupt()])
def test_a_failed_write_leaves_the_old_content_and_nothing_beside(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str, error: BaseException
) -> None:
    path = tmp_path / "a"
    write_text(path, "old")

    def fail(*_: Any) -> NoReturn:
        raise error

    with monkeypatch.context() as patch:
        patch.setattr(os if step == "fsync" else Path, step, fail)
        with pytest.raises((CelmError, KeyboardInterrupt)) as caught:
            write_text(path, "new")
    if isinstance(error, OSError):
        assert str(caught.value) == (
            f"cannot write {path}: no space left on device (free some space and try again)"
        )
    assert read_text(path) == "old"
    assert inside(tmp_path) == ["a"]


@pytest.fixture
def tiny_disk(tmp_path: Path) -> Iterator[Path]:
    folder = tmp_path / "disk"
    folder.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(folder)], capture_output=True, check=False
    )
    if mounted.returncode:
        pytest.skip("cannot mount a tmpfs here")
    try:
        yield folder
    finally:
        subprocess.run(["umount", str(folder)], check=True)


@pytest.mark.skipif(not sys.platform.startswith("linux") or os.geteuid() != 0, reason="mounting needs root")
def test_a_full_disk_leaves_the_old_content(tiny_disk: Path) -> None:
    write_text(tiny_disk / "a", "old")
    with pytest.raises(CelmError, match="no space left on device"):
        write_bytes(tiny_disk / "a", bytes(1 << 20))
    assert read_text(tiny_disk / "a") == "old"
    assert inside(tiny_disk) == ["a"]


def test_a_killed_writer_never_leaves_half_a_file(tmp_path: Path) -> None:
    path = tmp_path / "a"
    code = (
        "import sys, itertools; from pathlib import Path; from celm.base.files import write_bytes\n"
        "for i in itertools.count(): write_bytes(Path(sys.argv[1]), bytes([i % 256]) * 300_000)"
    )
    for pause in (0.0, 0.007, 0.013):
        writer = subprocess.Popen([sys.executable, "-c", code, str(path)])
        deadline = time.monotonic() + 60
        while not path.exists() and time.monotonic() < deadline:
            time.sleep(0.005)
        time.sleep(pause)
        writer.send_signal(signal.SIGKILL)
        writer.wait()
        content = path.read_bytes()
        assert len(content) == 300_000
        assert len(set(content)) == 1
        path.unlink()


@pytest.mark.parametrize("name", ["absent/a", "folder"])
def test_a_place_that_cannot_be_written_or_read_is_named(tmp_path: Path, name: str) -> None:
    (tmp_path / "folder").mkdir()
    with pytest.raises(CelmError, match=f"cannot write .*{name}"):
        write_text(tmp_path / name, "x")
    with pytest.raises(CelmError, match=f"cannot read .*{name}"):
        read_text(tmp_path / name)
    with pytest.raises(CelmError, match=f"cannot read .*{name}"):
        read_tensors(tmp_path / name)
    assert inside(tmp_path) == ["folder"]


def test_binary_is_not_text(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(CelmError, match="it is not text"):
        read_text(tmp_path / "a")


def test_json_has_no_nan() -> None:
    with pytest.raises(ValueError):
        dump_json({"a": float("nan")})


def test_tensors_are_read_back_bit_for_bit(tmp_path: Path) -> None:
    write_tensors(tmp_path / "a", TENSORS, ABOUT)
    tensors, about = read_tensors(tmp_path / "a")
    assert same(tensors, TENSORS)
    assert about == ABOUT


def test_nothing_but_a_note_may_be_saved(tmp_path: Path) -> None:
    write_tensors(tmp_path / "a", {}, {"digest": "mine", "about": 1})
    assert read_tensors(tmp_path / "a") == ({}, {"digest": "mine", "about": 1})


def test_equal_content_gives_equal_bytes(tmp_path: Path) -> None:
    write_tensors(tmp_path / "a", TENSORS, ABOUT)
    write_tensors(tmp_path / "b", dict(reversed(TENSORS.items())), dict(ABOUT))
    transposed = {**TENSORS, "weight": TENSORS["weight"].T.contiguous().T}
    write_tensors(tmp_path / "c", transposed, ABOUT)
    assert len({(tmp_path / name).read_bytes() for name in "abc"}) == 1


def test_tied_and_overlapping_tensors_are_saved_under_each_name(tmp_path: Path) -> None:
    base = torch.arange(4.0)
    tied = {"a": base, "b": base, "c": base[:3], "d": base[1:]}
    write_tensors(tmp_path / "a", tied, {})
    assert same(read_tensors(tmp_path / "a")[0], tied)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=300, deadline=None)
@given(data=st.data())
def test_a_flipped_byte_is_found_wherever_it_is(tmp_path: Path, data: st.DataObject) -> None:
    path = tmp_path / "a"
    write_tensors(path, TENSORS, ABOUT)
    content = bytearray(path.read_bytes())
    at = data.draw(st.integers(0, len(content) - 1), label="position")
    content[at] ^= data.draw(st.integers(1, 255), label="mask")
    path.write_bytes(content)
    try:
        tensors, about = read_tensors(path)
    except CelmError as error:
        message = str(error)
    else:  # only where JSON reads the same either way, such as a tab for a blank at the end of the header
        assert same(tensors, TENSORS)
        assert about == ABOUT
        return
    assert "damaged file" in message


def test_every_bit_of_the_data_and_of_the_note_is_covered(tmp_path: Path) -> None:
    path = tmp_path / "a"
    write_tensors(path, TENSORS, ABOUT)
    content = path.read_bytes()
    header = 8 + int.from_bytes(content[:8], "little")
    note = content.index(b"round")
    for at in [*range(header, len(content)), *range(note, note + 20)]:
        for bit in range(8):
            damaged = bytearray(content)
            damaged[at] ^= 1 << bit
            path.write_bytes(damaged)
            with pytest.raises(CelmError, match="damaged file"):
                read_tensors(path)


@pytest.mark.parametrize("keep", [0, 1, 7, 8, 9, 50, -1])
def test_a_cut_file_is_found(tmp_path: Path, keep: int) -> None:
    path = tmp_path / "a"
    write_tensors(path, TENSORS, ABOUT)
    path.write_bytes(path.read_bytes()[:keep])
    with pytest.raises(CelmError, match="damaged file"):
        read_tensors(path)


def test_a_foreign_safetensors_file_is_not_ours(tmp_path: Path) -> None:
    from safetensors.torch import save_file

    for metadata in (None, {"celm": "3"}, {"celm": "{}"}, {"celm": '{"about": 1, "digest": ""}'}):
        save_file({"a": torch.zeros(1)}, tmp_path / "a", metadata=metadata)
        with pytest.raises(CelmError, match="damaged file"):
            read_tensors(tmp_path / "a")


def test_digest_tells_names_kinds_shapes_and_values_apart() -> None:
    zero = torch.zeros(2)
    different = [
        {"a": zero},
        {"b": zero},
        {"a": zero.int()},
        {"a": zero.reshape(1, 2)},
        {"a": torch.tensor([0.0, -0.0])},
        {"a": zero, "b": zero},
        {},
    ]
    assert len({tensor_digest(tensors) for tensors in different}) == len(different)
    assert tensor_digest({"a": torch.arange(4.0)[::2]}) == tensor_digest({"a": torch.tensor([0.0, 2.0])})


def test_digest_cannot_be_imitated_by_a_name() -> None:
    value = torch.frombuffer(bytearray(b"abcd"), dtype=torch.uint8)
    two = {"x": value, "y": value}
    one = {"x|torch.uint8|(4,)|abcdy": value}
    assert tensor_digest(two) != tensor_digest(one)


@pytest.mark.parametrize(("code", "is_error"), [(errno.EIO, True), (errno.EINVAL, False)])
def test_a_failing_fsync_of_a_folder_is_reported_if_folders_have_one(
    code: int, is_error: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fsync = os.fsync

    def fail(handle: int) -> None:
        if stat.S_ISDIR(os.fstat(handle).st_mode):
            raise OSError(code, os.strerror(code))
        fsync(handle)

    monkeypatch.setattr(os, "fsync", fail)
    if is_error:
        with pytest.raises(CelmError, match=r"cannot write .*x\.txt: input/output error"):
            write_bytes(tmp_path / "x.txt", b"x")
    else:
        write_bytes(tmp_path / "x.txt", b"x")
    assert (tmp_path / "x.txt").read_bytes() == b"x"
