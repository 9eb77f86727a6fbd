"""Downloads from a real server on this machine that can misbehave on request."""

from __future__ import annotations

import hashlib
import os
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from celm.base.errors import CelmError
from celm.data.dataset_info import DatasetInfo, FileLayout, RemoteFile
from celm.data.files.ensure import download_files, ensure_files
from celm.data.files.http import download_file

CONTENT = bytes(range(256)) * 4000


@dataclass
class Web:
    """The content, behaviour and received requests of the server."""

    address: str = ""
    content: bytes = CONTENT
    ranges: bool = True
    status: int | None = None
    redirect: str | None = None
    break_after: list[int] = field(default_factory=list)
    """Bytes after which each of the next answers breaks off."""
    hang: bool = False
    seen: list[str | None] = field(default_factory=list)
    release: threading.Event = field(default_factory=threading.Event)


@pytest.fixture
def web(empty_data_root: Path) -> Iterator[Web]:
    state = Web()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked = self.headers.get("Range")
            state.seen.append(asked)
            if state.hang:
                state.release.wait(20)
                return
            if state.redirect is not None:
                self.send_response(302)
                self.send_header("Location", state.redirect)
                self.end_headers()
                return
            if state.status is not None:
                self.send_error(state.status)
                return
            start = int(asked.removeprefix("bytes=").removesuffix("-")) if asked and state.ranges else 0
            if asked and state.ranges and start >= len(state.content):
                self.send_error(416)
                return
            body = state.content[start:]
            self.send_response(206 if start else 200)
            if start:
                self.send_header(
                    "Content-Range", f"bytes {start}-{len(state.content) - 1}/{len(state.content)}"
                )
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body[: state.break_after.pop(0)] if state.break_after else body)

        def log_message(self, *arguments: Any) -> None:
            """Quiet."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    state.address = f"http://127.0.0.1:{server.server_port}"
    yield state
    state.release.set()
    server.shutdown()
    server.server_close()
    thread.join()


def remote(web: Web, content: bytes = CONTENT, kind: str = "sha256") -> RemoteFile:
    return RemoteFile(
        "file.bin",
        f"{web.address}/file.bin",
        len(content),
        f"{kind}:{hashlib.new(kind, content).hexdigest()}",
    )


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir() if not path.name.endswith(".lock"))


def test_a_good_transfer(web: Web, tmp_path: Path) -> None:
    steps: list[tuple[int, int]] = []
    target = download_file(remote(web), tmp_path / "new" / "file.bin", lambda *step: steps.append(step))
    assert target.read_bytes() == CONTENT
    assert names(target.parent) == ["file.bin"]
    assert steps == sorted(steps)
    assert steps[-1] == (len(CONTENT), len(CONTENT))


def test_what_is_there_and_whole_is_not_fetched_again(web: Web, tmp_path: Path) -> None:
    for _ in range(2):
        download_file(remote(web), tmp_path / "file.bin")
    assert len(web.seen) == 1


def test_a_connection_that_breaks_is_taken_up_again(web: Web, tmp_path: Path) -> None:
    web.break_after = [300_000, 200_000]
    assert download_file(remote(web), tmp_path / "file.bin").read_bytes() == CONTENT
    assert web.seen == [None, "bytes=300000-", "bytes=500000-"]


def test_a_connection_that_brings_nothing_is_an_error_and_the_part_is_kept(web: Web, tmp_path: Path) -> None:
    web.break_after = [300_000, 0]
    with pytest.raises(CelmError, match="the connection broke after 300000 of 1024000 bytes"):
        download_file(remote(web), tmp_path / "file.bin")
    assert names(tmp_path) == ["file.bin.part"]
    assert download_file(remote(web), tmp_path / "file.bin").read_bytes() == CONTENT
    assert web.seen[-1] == "bytes=300000-"
    assert names(tmp_path) == ["file.bin"]


def test_without_range_support_it_starts_again(web: Web, tmp_path: Path) -> None:
    web.ranges = False
    web.break_after = [300_000]
    assert download_file(remote(web), tmp_path / "file.bin").read_bytes() == CONTENT
    assert web.seen == [None, "bytes=300000-"]


def test_a_server_that_always_breaks_without_ranges_does_not_loop(web: Web, tmp_path: Path) -> None:
    web.ranges = False
    web.break_after = [300_000] * 9
    with pytest.raises(CelmError, match="broke"):
        download_file(remote(web), tmp_path / "file.bin")
    assert len(web.seen) == 2


@pytest.mark.parametrize("length", [1000, len(CONTENT), len(CONTENT) + 5])
def test_a_part_of_something_else_is_discarded_once(web: Web, tmp_path: Path, length: int) -> None:
    (tmp_path / "file.bin.part").write_bytes(b"!" * length)
    assert download_file(remote(web), tmp_path / "file.bin").read_bytes() == CONTENT
    assert web.seen[-1] is None
    assert names(tmp_path) == ["file.bin"]


def test_a_part_left_by_a_kill_is_completed(web: Web, tmp_path: Path) -> None:
    (tmp_path / "file.bin.part").write_bytes(CONTENT[:777])
    assert download_file(remote(web), tmp_path / "file.bin").read_bytes() == CONTENT
    assert web.seen == ["bytes=777-"]


def test_a_wrong_checksum_leaves_nothing(web: Web, tmp_path: Path) -> None:
    web.content = CONTENT[:-1] + b"!"
    with pytest.raises(CelmError, match=r"file\.bin: .*checksum"):
        download_file(remote(web), tmp_path / "file.bin")
    assert names(tmp_path) == []
    (tmp_path / "file.bin.part").write_bytes(CONTENT[:777])
    with pytest.raises(CelmError, match="checksum"):
        download_file(remote(web), tmp_path / "file.bin")
    assert web.seen == [None, "bytes=777-", None]


def test_more_than_expected_is_cut_off(web: Web, tmp_path: Path) -> None:
    web.content = CONTENT * 3
    with pytest.raises(CelmError, match="larger than the 1024000 bytes expected"):
        download_file(remote(web), tmp_path / "file.bin")
    assert not (tmp_path / "file.bin").exists()


def test_not_found_and_no_server_and_no_answer(web: Web, tmp_path: Path) -> None:
    web.status = 404
    with pytest.raises(CelmError, match="the server answers 404"):
        download_file(remote(web), tmp_path / "file.bin")
    with pytest.raises(CelmError, match="refused"):
        download_file(RemoteFile("x", "http://127.0.0.1:1/x", 3, "sha256:0"), tmp_path / "x")
    web.hang = True
    with pytest.raises(CelmError, match="timed out"):
        download_file(remote(web), tmp_path / "file.bin", timeout=0.2)


@pytest.mark.parametrize("url", ["file:///etc/passwd", "ftp://127.0.0.1/x", "data:,abc", "/etc/passwd"])
def test_only_http_even_by_redirection(web: Web, tmp_path: Path, url: str) -> None:
    with pytest.raises(CelmError, match="only http and https"):
        download_file(RemoteFile("x", url, 3, "sha256:0"), tmp_path / "x")
    if ":" in url:
        web.redirect = url
        with pytest.raises(CelmError):
            download_file(remote(web), tmp_path / "file.bin")
        assert names(tmp_path) == []


def test_disk_errors_are_one_line(web: Web, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "in_the_way").write_text("a file")
    with pytest.raises(CelmError, match="cannot write to"):
        download_file(remote(web), tmp_path / "in_the_way" / "file.bin")
    (tmp_path / "file.bin.part").mkdir()
    with pytest.raises(CelmError, match="cannot write"):
        download_file(remote(web), tmp_path / "file.bin")
    (tmp_path / "file.bin.part").rmdir()

    def full(handle: int) -> None:
        raise OSError(28, os.strerror(28))

    monkeypatch.setattr("celm.data.files.http.os.fsync", full)
    with pytest.raises(CelmError, match=r"no space left on device .*free some space"):
        download_file(remote(web), tmp_path / "file.bin")
    assert not (tmp_path / "file.bin").exists()


def test_two_at_once_give_one_whole_file(web: Web, tmp_path: Path) -> None:
    web.break_after = [100_000] * 4
    threads = [
        threading.Thread(target=download_file, args=(remote(web), tmp_path / "file.bin")) for _ in range(3)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (tmp_path / "file.bin").read_bytes() == CONTENT
    assert web.seen.count(None) == 1


def make_info(web: Web, **more: Any) -> DatasetInfo:
    form = FileLayout("bin", {"all": ("file.bin",)})
    return DatasetInfo(
        "toy", (1,), 2, "free", ((1, 1),), layouts=(form,), **{"remote_files": (remote(web),), **more}
    )


def test_a_dataset_is_fetched_into_its_folder_from_a_mirror(
    web: Web, empty_data_root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CELM_MIRROR", f"{web.address}/mirror/")
    elsewhere = RemoteFile("file.bin", "http://127.0.0.1:1/file.bin", len(CONTENT), remote(web).digest)
    located = ensure_files(make_info(web, remote_files=(elsewhere,)))
    assert located.path("all") == empty_data_root / "toy" / "file.bin"
    assert ensure_files(make_info(web)).path("all").read_bytes() == CONTENT
    assert len(web.seen) == 1


def test_a_dataset_that_cannot_be_had_says_what_where_and_what_to_do(web: Web, empty_data_root: Path) -> None:
    web.status = 503
    with pytest.raises(CelmError) as caught:
        ensure_files(make_info(web))
    message = str(caught.value)
    for part in (
        "'toy' not found",
        "file.bin in",
        str(empty_data_root / "toy"),
        "503",
        "celm data get toy",
        "CELM_DATA",
    ):
        assert part in message
    assert "\n" not in message
    with pytest.raises(CelmError, match="it cannot be downloaded"):
        ensure_files(make_info(web, remote_files=()))


def test_the_hub_is_asked_for_parquet_and_its_failures_are_one_line(
    web: Web, empty_data_root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import huggingface_hub

    toy = DatasetInfo(
        "toy",
        (1,),
        2,
        "free",
        ((1, 1),),
        layouts=(FileLayout("parquet", {"train": ("train*.parquet",)}),),
        hf_repo="a/b",
    )

    def snapshot(repository: str, *, local_dir: Path, **options: Any) -> str:
        assert (repository, options["repo_type"]) == ("a/b", "dataset")
        (local_dir / "data").mkdir()
        (local_dir / "data" / "train-00000-of-00001.parquet").write_bytes(b"1")
        return str(local_dir)

    def offline(*arguments: Any, **options: Any) -> str:
        raise RuntimeError("no\nnetwork")

    monkeypatch.setattr(huggingface_hub, "snapshot_download", offline)
    with pytest.raises(CelmError, match="cannot download a/b from the Hugging Face hub: no network"):
        download_files(toy)
    monkeypatch.setattr(huggingface_hub, "snapshot_download", snapshot)
    assert download_files(toy).path("train") == empty_data_root / "toy" / "train-00000-of-00001.parquet"
