"""Downloads from a real server on this machine that can be told to misbehave."""

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
from celm.data.facts import Facts, Form, Remote
from celm.data.files.download import download
from celm.data.files.fetch import available, fetch

CONTENT = bytes(range(256)) * 4000


@dataclass
class Web:
    """What the server has, how it behaves, and which requests it saw."""

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
def web(own_places: Path) -> Iterator[Web]:
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


def remote(web: Web, content: bytes = CONTENT, kind: str = "sha256") -> Remote:
    return Remote(
        "file.bin",
        f"{web.address}/file.bin",
        len(content),
        f"{kind}:{hashlib.new(kind, content).hexdigest()}",
    )


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir() if not path.name.endswith(".lock"))


@pytest.mark.parametrize("kind", ["sha256", "md5"])
def test_a_good_transfer(web: Web, tmp_path: Path, kind: str) -> None:
    steps: list[tuple[int, int]] = []
    target = download(remote(web, kind=kind), tmp_path / "new" / "file.bin", lambda *step: steps.append(step))
    assert target.read_bytes() == CONTENT
    assert names(target.parent) == ["file.bin"]
    assert steps == sorted(steps)
    assert steps[-1] == (len(CONTENT), len(CONTENT))


def test_what_is_there_and_whole_is_not_fetched_again(web: Web, tmp_path: Path) -> None:
    for _ in range(2):
        download(remote(web), tmp_path / "file.bin")
    assert len(web.seen) == 1


def test_a_connection_that_breaks_is_taken_up_again(web: Web, tmp_path: Path) -> None:
    web.break_after = [300_000, 200_000]
    assert download(remote(web), tmp_path / "file.bin").read_bytes() == CONTENT
    assert web.seen == [None, "bytes=300000-", "bytes=500000-"]


def test_a_connection_that_brings_nothing_is_an_error_and_the_part_is_kept(web: Web, tmp_path: Path) -> None:
    web.break_after = [300_000, 0]
    with pytest.raises(CelmError, match="the connection broke after 300000 of 1024000 bytes"):
        download(remote(web), tmp_path / "file.bin")
    assert names(tmp_path) == ["file.bin.part"]
    assert download(remote(web), tmp_path / "file.bin").read_bytes() == CONTENT
    assert web.seen[-1] == "bytes=300000-"
    assert names(tmp_path) == ["file.bin"]


def test_without_range_support_it_starts_again(web: Web, tmp_path: Path) -> None:
    web.ranges = False
    web.break_after = [300_000]
    assert download(remote(web), tmp_path / "file.bin").read_bytes() == CONTENT
    assert web.seen == [None, "bytes=300000-"]


def test_a_server_that_always_breaks_without_ranges_does_not_loop(web: Web, tmp_path: Path) -> None:
    web.ranges = False
    web.break_after = [300_000] * 9
    with pytest.raises(CelmError, match="broke"):
        download(remote(web), tmp_path / "file.bin")
    assert len(web.seen) == 2


@pytest.mark.parametrize("length", [1000, len(CONTENT), len(CONTENT) + 5])
def test_a_part_of_something_else_is_discarded_once(web: Web, tmp_path: Path, length: int) -> None:
    (tmp_path / "file.bin.part").write_bytes(b"!" * length)
    assert download(remote(web), tmp_path / "file.bin").read_bytes() == CONTENT
    assert web.seen[-1] is None
    assert names(tmp_path) == ["file.bin"]


def test_a_part_left_by_a_kill_is_completed(web: Web, tmp_path: Path) -> None:
    (tmp_path / "file.bin.part").write_bytes(CONTENT[:777])
    assert download(remote(web), tmp_path / "file.bin").read_bytes() == CONTENT
    assert web.seen == ["bytes=777-"]


def test_a_wrong_checksum_leaves_nothing(web: Web, tmp_path: Path) -> None:
    web.content = CONTENT[:-1] + b"!"
    with pytest.raises(CelmError, match=r"file\.bin: the checksum of what arrived is wrong"):
        download(remote(web), tmp_path / "file.bin")
    assert names(tmp_path) == []
    (tmp_path / "file.bin.part").write_bytes(CONTENT[:777])
    with pytest.raises(CelmError, match="checksum"):
        download(remote(web), tmp_path / "file.bin")
    assert web.seen == [None, "bytes=777-", None]


def test_more_than_expected_is_cut_off(web: Web, tmp_path: Path) -> None:
    web.content = CONTENT * 3
    with pytest.raises(CelmError, match="larger than the 1024000 bytes expected"):
        download(remote(web), tmp_path / "file.bin")
    assert not (tmp_path / "file.bin").exists()


def test_not_found_and_no_server_and_no_answer(web: Web, tmp_path: Path) -> None:
    web.status = 404
    with pytest.raises(CelmError, match="the server answers 404"):
        download(remote(web), tmp_path / "file.bin")
    with pytest.raises(CelmError, match="refused"):
        download(Remote("x", "http://127.0.0.1:1/x", 3, "md5:0"), tmp_path / "x")
    web.hang = True
    with pytest.raises(CelmError, match="timed out"):
        download(remote(web), tmp_path / "file.bin", timeout=0.2)


@pytest.mark.parametrize("url", ["file:///etc/passwd", "ftp://127.0.0.1/x", "data:,abc", "/etc/passwd"])
def test_only_http_even_by_redirection(web: Web, tmp_path: Path, url: str) -> None:
    with pytest.raises(CelmError, match="only http and https"):
        download(Remote("x", url, 3, "md5:0"), tmp_path / "x")
    if ":" in url:
        web.redirect = url
        with pytest.raises(CelmError):
            download(remote(web), tmp_path / "file.bin")
        assert names(tmp_path) == []


def test_disk_errors_are_one_line(web: Web, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "in_the_way").write_text("a file")
    with pytest.raises(CelmError, match="cannot write to"):
        download(remote(web), tmp_path / "in_the_way" / "file.bin")
    (tmp_path / "file.bin.part").mkdir()
    with pytest.raises(CelmError, match="cannot write"):
        download(remote(web), tmp_path / "file.bin")
    (tmp_path / "file.bin.part").rmdir()

    def full(handle: int) -> None:
        raise OSError(28, os.strerror(28))

    monkeypatch.setattr("celm.data.files.download.os.fsync", full)
    with pytest.raises(CelmError, match=r"no space left on device .*free some space"):
        download(remote(web), tmp_path / "file.bin")
    assert not (tmp_path / "file.bin").exists()


def test_two_at_once_give_one_whole_file(web: Web, tmp_path: Path) -> None:
    web.break_after = [100_000] * 4
    threads = [threading.Thread(target=download, args=(remote(web), tmp_path / "file.bin")) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (tmp_path / "file.bin").read_bytes() == CONTENT
    assert web.seen.count(None) == 1


def facts(web: Web, **more: Any) -> Facts:
    form = Form("bin", {"all": ("file.bin",)})
    return Facts("toy", (1,), 2, "free", ((1, 1),), forms=(form,), **{"remote": (remote(web),), **more})


def test_a_dataset_is_fetched_into_its_folder_from_a_mirror(
    web: Web, own_places: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CELM_MIRROR", f"{web.address}/mirror/")
    elsewhere = Remote("file.bin", "http://127.0.0.1:1/file.bin", len(CONTENT), remote(web).digest)
    found = available(facts(web, remote=(elsewhere,)))
    assert found.one("all") == own_places / "toy" / "file.bin"
    assert available(facts(web)).one("all").read_bytes() == CONTENT
    assert len(web.seen) == 1


def test_a_dataset_that_cannot_be_had_says_what_where_and_what_to_do(web: Web, own_places: Path) -> None:
    web.status = 503
    with pytest.raises(CelmError) as caught:
        available(facts(web))
    message = str(caught.value)
    for part in (
        "'toy' not found",
        "file.bin in",
        str(own_places / "toy"),
        "503",
        "celm data get toy",
        "CELM_DATA",
    ):
        assert part in message
    assert "\n" not in message
    with pytest.raises(CelmError, match="it cannot be downloaded"):
        available(facts(web, remote=()))


def test_the_hub_is_asked_for_parquet_and_its_failures_are_one_line(
    web: Web, own_places: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import huggingface_hub

    toy = Facts(
        "toy", (1,), 2, "free", ((1, 1),), (Form("parquet", {"train": ("train*.parquet",)}),), hub="a/b"
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
        fetch(toy)
    monkeypatch.setattr(huggingface_hub, "snapshot_download", snapshot)
    assert fetch(toy).one("train") == own_places / "toy" / "train-00000-of-00001.parquet"
