"""Datasets of the hub: from files at hand, and from a server on this machine that speaks the hub's protocol."""

from __future__ import annotations

import hashlib
import io
import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest
from PIL import Image

from celm.base.errors import CelmError
from celm.data.sources.hub import HubDataset
from celm.experiment.dataset_names import parse_dataset

COMMIT = "0123456789abcdef0123456789abcdef01234567"


def image_bytes(value: int) -> bytes:
    buffer = io.BytesIO()
    Image.fromarray(np.full((6, 6), value, dtype=np.uint8)).save(buffer, "PNG")
    return buffer.getvalue()


def write_images(path: Path, rows: int) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    images = [{"bytes": image_bytes(200 * (row % 2)), "path": f"{row}.png"} for row in range(rows)]
    columns = {
        "image": images,
        "label": [row % 2 for row in range(rows)],
        "client": [f"site {'ab'[row % 4 // 2]}" for row in range(rows)],
    }
    pa.parquet.write_table(pa.table(columns), path)


def write_repository(folder: Path) -> None:
    """Write shards as on the hub, in `data/`."""
    write_images(folder / "data" / "train-00000-of-00001.parquet", 20)
    write_images(folder / "data" / "test-00000-of-00001.parquet", 8)


def test_images_of_a_repository_at_hand(empty_data_root: Path) -> None:
    write_repository(empty_data_root / "hf" / "acme" / "scans")
    data = HubDataset("acme/scans", grayscale=True).load()
    assert (len(data.train_labels), len(data.test_labels)) == (20, 8)
    assert data.shape == (1, 6, 6)
    assert set(data.client_ids or ()) == {"site a", "site b"}
    assert bool((data.train_inputs[0] < data.train_inputs[1]).all())


def test_a_table_of_a_repository_at_hand(empty_data_root: Path) -> None:
    folder = empty_data_root / "hf" / "acme" / "patients@v1"
    folder.mkdir(parents=True)
    table = pa.table({"age": list(range(40)), "label": ["ab"[row % 2] for row in range(40)]})
    pa.parquet.write_table(table, folder / "train.parquet")
    data = HubDataset("acme/patients", revision="v1").load()
    assert data.shape == (1,)
    assert len(data.test_labels) == 8


def test_several_folders_need_a_subset(empty_data_root: Path) -> None:
    folder = empty_data_root / "hf" / "acme" / "scans"
    for name in ("small", "large"):
        write_images(folder / name / "train-00000-of-00001.parquet", 20)
    with pytest.raises(CelmError, match=r"folders large, small.*dataset\.subset"):
        HubDataset("acme/scans").load()
    assert HubDataset("acme/scans", subset="small").load().shape == (3, 6, 6)


def test_names_are_checked_before_they_are_paths() -> None:
    assert parse_dataset("hf:a/b@v1.0") == {"name": "hf", "repo": "a/b", "revision": "v1.0"}
    for repo, revision in (("../b", None), ("a/..", None), ("a", None), ("a/b/c", None), ("a/b", "../x")):
        with pytest.raises(CelmError, match=r"dataset\.re"):
            HubDataset(repo, revision=revision).load()


@pytest.fixture
def hub(tmp_path: Path) -> Iterator[str]:
    """Serve the repository acme/scans by the two requests of the hub's protocol: its file list, and its files."""
    root = tmp_path / "repository"
    write_repository(root)
    names = sorted(str(path.relative_to(root)) for path in root.rglob("*.parquet"))

    class Handler(BaseHTTPRequestHandler):
        def do_HEAD(self) -> None:
            self.answer(send_body=False)

        def do_GET(self) -> None:
            self.answer(send_body=True)

        def answer(self, send_body: bool) -> None:
            path = unquote(self.path).partition("?")[0]
            prefix = f"/datasets/acme/scans/resolve/{COMMIT}/"
            if path.startswith("/api/datasets/acme/scans/tree/"):
                entries = [
                    {"type": "file", "path": name, "size": (root / name).stat().st_size, "oid": "0" * 40}
                    for name in names
                ]
                body, kind = json.dumps(entries).encode(), "application/json"
            elif path.startswith("/api/datasets/acme/scans"):
                info: dict[str, Any] = {"id": "acme/scans", "sha": COMMIT, "private": False, "tags": []}
                body = json.dumps({**info, "siblings": [{"rfilename": name} for name in names]}).encode()
                kind = "application/json"
            elif path.startswith(prefix) and path.removeprefix(prefix) in names:
                body, kind = (root / path.removeprefix(prefix)).read_bytes(), "application/octet-stream"
            else:
                self.send_error(404)
                return
            self.send_response(200)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(body)))
            self.send_header("X-Repo-Commit", COMMIT)
            self.send_header("ETag", f'"{hashlib.sha256(body).hexdigest()}"')
            self.end_headers()
            if send_body:
                self.wfile.write(body)

        def log_message(self, format: str, *arguments: Any) -> None:
            """Print nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()
    thread.join()


def test_a_repository_is_downloaded_once(hub: str, tmp_path: Path) -> None:
    arguments = ["run", "--dataset=hf:acme/scans", "--rule=fedavg", "--rounds=1", "--split=natural"]
    environment = {
        **os.environ,
        "HF_HOME": str(tmp_path / "home"),
        "HF_HUB_DISABLE_XET": "1",
        "CELM_DATA": str(tmp_path / "data"),
        "no_proxy": "127.0.0.1",
    }
    # The second run has no server: the address is one that nobody listens on.
    for number, endpoint in enumerate((hub, "http://127.0.0.1:1")):
        done = subprocess.run(
            [sys.executable, "-m", "celm", *arguments, "--format=json", f"--out={tmp_path / str(number)}"],
            env={**environment, "HF_ENDPOINT": endpoint},
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        assert set(json.loads(done.stdout)["weights"]) == {"site a", "site b"}
    assert not list((tmp_path / "data" / "hf" / "acme").glob("*.part"))
