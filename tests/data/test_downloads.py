"""Official files of datasets, downloaded from a server on this machine whose layout is that of a mirror."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from celm.base.errors import CelmError
from celm.data.files.cifar_binary import CIFAR10, CIFAR100
from celm.data.registry import datasets
from support.dataset_files import (
    write_cifar_archive,
    write_fsdd_archive,
    write_hapt_archive,
    write_mnist_files,
    write_svhn_files,
)

WRITERS: dict[str, Callable[[Path], object]] = {
    "hapt": lambda folder: write_hapt_archive(folder / "hapt.zip"),
    "fsdd": lambda folder: write_fsdd_archive(folder / "free-spoken-digit-dataset-1.0.10.zip"),
    "mnist": write_mnist_files,
    "cifar10": lambda folder: write_cifar_archive(folder, CIFAR10),
    "cifar100": lambda folder: write_cifar_archive(folder, CIFAR100),
    "svhn": write_svhn_files,
}


class _QuietHandler(SimpleHTTPRequestHandler):
    def log_message(self, format: str, *arguments: Any) -> None:
        """Print nothing."""


@pytest.fixture
def mirror(empty_data_root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Serve a folder as the mirror of all datasets, and return it."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(_QuietHandler, directory=str(tmp_path)))
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    monkeypatch.setenv("CELM_MIRROR", f"http://127.0.0.1:{server.server_port}")
    yield tmp_path
    server.shutdown()
    server.server_close()
    thread.join()


@pytest.mark.parametrize("name", WRITERS)
def test_official_files_are_downloaded_and_read(
    name: str, mirror: Path, empty_data_root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    WRITERS[name](mirror / name)
    source: Any = datasets.load(name)
    # Only size and digest are those of the small files.
    files = []
    for file in source.info.remote_files:
        content = (mirror / name / file.name).read_bytes()
        digest = f"sha256:{hashlib.sha256(content).hexdigest()}"
        files.append(replace(file, size=len(content), digest=digest))
    monkeypatch.setattr(source, "info", replace(source.info, remote_files=tuple(files)))
    data = datasets.build(name, {}).load()
    assert data.shape == source.info.shape
    assert len(data.classes) == source.info.classes
    assert len(data.test_labels) > 0
    assert {path.name for path in (empty_data_root / name).iterdir() if path.name[0] != "."} == {
        file.name for file in files
    }


@pytest.mark.parametrize("name", WRITERS)
def test_other_files_under_the_official_names_are_refused(
    name: str, mirror: Path, empty_data_root: Path
) -> None:
    WRITERS[name](mirror / name)
    source: Any = datasets.load(name)
    for file in source.info.remote_files:
        assert file.url.startswith(("http://", "https://"))
        path = mirror / name / file.name
        if file.size < 1_000_000:
            path.write_bytes(path.read_bytes().ljust(file.size, b"\0")[: file.size])
    with pytest.raises(CelmError, match=f"cannot download .*{name}/.*celm data get {name}"):
        datasets.build(name, {}).load()
    assert not [path for path in (empty_data_root / name).glob("*") if path.suffix in (".zip", ".gz", ".mat")]
