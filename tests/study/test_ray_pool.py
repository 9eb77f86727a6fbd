"""A study on a real Ray of two workers: the same table as without, whoever is killed on the way."""

from __future__ import annotations

import importlib.util
import json
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        not importlib.util.find_spec("ray"), reason="Ray is not installed: pip install 'celm[ray]'"
    ),
]
Start = Callable[..., Any]
Working = Callable[[int, str], list[int]]
ONE_ROW = "--only=dataset=fashion_mnist"


def study(folder: Path, *more: str) -> tuple[str, ...]:
    return ("study", "iid", "--scale=smoke", ONE_ROW, f"--out={folder}", "--format=json", *more)


def tables(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}


def kill_a_worker(process: Any, known: set[int], working: Working) -> None:
    deadline = time.monotonic() + 120
    while not (fresh := [pid for pid in working(process.pid, "remote_run") if pid not in known]):
        assert process.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.01)
    os.kill(fresh[0], signal.SIGKILL)
    known.add(fresh[0])


def test_a_killed_worker_costs_nothing_and_the_table_is_that_of_the_local_pool(
    tmp_path: Path, start_celm: Start, ray_workers: Working
) -> None:
    process = start_celm(*study(tmp_path / "ray", "--pool=ray", "--address=local", "--workers=2"))
    kill_a_worker(process, set(), ray_workers)
    printed, said = process.communicate(timeout=240)
    assert process.returncode == 0, said
    assert json.loads(printed)["errors"] == {}
    assert start_celm(*study(tmp_path / "local")).wait(timeout=240) == 0
    assert tables(tmp_path / "ray") == tables(tmp_path / "local")
    for path in (tmp_path / "local").rglob("rounds.jsonl"):
        assert path.read_bytes() == (tmp_path / "ray" / path.relative_to(tmp_path / "local")).read_bytes()


def test_a_cell_whose_workers_die_again_and_again_fails_alone_and_can_be_done_later(
    tmp_path: Path, start_celm: Start, ray_workers: Working
) -> None:
    out = tmp_path / "out"
    process = start_celm(*study(out, "--pool=ray", "--address=local", "--workers=1"))
    killed: set[int] = set()
    for _ in range(3):
        kill_a_worker(process, killed, ray_workers)
    printed, said = process.communicate(timeout=240)
    assert process.returncode == 2, said
    assert "1 of 5 runs failed" in said
    assert list(json.loads(printed)["errors"]) == ["fashion_mnist iid-fedavg-42"]
    assert start_celm(*study(out)).wait(timeout=240) == 0
    assert start_celm(*study(tmp_path / "local")).wait(timeout=240) == 0
    assert tables(out) == tables(tmp_path / "local")


def test_a_cluster_that_is_not_there_is_one_line(tmp_path: Path, celm: Callable[..., Any]) -> None:
    for address, said in (
        ("127.0.0.1:1", "cannot reach a Ray cluster at 127.0.0.1:1"),
        ("ray://here:1", "Client"),
    ):
        done = celm(*study(tmp_path / "out", "--pool=ray", f"--address={address}"))
        assert done.returncode == 2
        assert done.stdout == ""
        assert said in done.stderr
        assert done.stderr.count("\n") == 1
