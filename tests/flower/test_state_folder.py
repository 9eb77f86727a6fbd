"""A state folder: lost checkpoints, swapped members, changed lines, other users of the machine."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import stat
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("flwr", reason="Flower is not installed: pip install 'celm[flower]'")

from flwr.app import ArrayRecord, MetricRecord
from typer.testing import Result

from celm.base.errors import CelmError
from celm.records.federation_files import read_federation, read_state_folder
from support.small_grid import SmallGrid, initial, learner
from support.state_folders import amendments, clients, copy_older_folder, lines_of, play, sha256, strategy

# --- lost checkpoints ---------------------------------------------------------------------------------------


def test_lost_checkpoints_are_refused_and_the_record_stays(tmp_path: Path) -> None:
    play(tmp_path, 3)
    record = (tmp_path / "rounds.jsonl").read_bytes()
    saved = tmp_path.with_name(f"{tmp_path.name}-saved")
    shutil.move(tmp_path / "checkpoints", saved)
    with pytest.raises(
        CelmError, match=r"3 rounds are recorded, but no checkpoint is there \(restore .*checkpoints"
    ):
        play(tmp_path, 3)
    assert (tmp_path / "rounds.jsonl").read_bytes() == record
    assert not (tmp_path / "dropped.jsonl").exists()
    shutil.rmtree(tmp_path / "checkpoints", ignore_errors=True)
    shutil.move(saved, tmp_path / "checkpoints")
    assert len(play(tmp_path, 3, SmallGrid({})).records) == 3


def test_older_checkpoints_are_refused_too(tmp_path: Path) -> None:
    saved = tmp_path.with_name(f"{tmp_path.name}-saved")

    def copy_checkpoints(number: int, _: ArrayRecord) -> None:
        if number == 2:
            shutil.copytree(tmp_path / "checkpoints", saved)

    strategy(tmp_path).start(SmallGrid(clients()), initial(), 4, evaluate_fn=copy_checkpoints)
    shutil.rmtree(tmp_path / "checkpoints")
    shutil.copytree(saved, tmp_path / "checkpoints")
    with pytest.raises(CelmError, match="4 rounds are recorded, but the last checkpoint is of round 2"):
        play(tmp_path, 4)


def test_a_line_beyond_the_checkpoint_is_moved_aside(tmp_path: Path) -> None:
    """A kill between a line and its checkpoint, twice: the lines of both rounds 3 are still there."""
    dropped: list[dict[str, Any]] = []
    for _ in (1, 2):
        play(tmp_path, 3)
        (tmp_path / "checkpoints" / "round-000003.safetensors").unlink()
        with (tmp_path / "failures.jsonl").open("a") as file:
            file.write('{"round": 4, "torn')
        dropped += [{"file": "evaluations.jsonl", "line": lines_of(tmp_path / "evaluations.jsonl")[3]}]
        dropped += [{"file": "failures.jsonl", "line": '{"round": 4, "torn'}]
        dropped += [{"file": "rounds.jsonl", "line": lines_of(tmp_path / "rounds.jsonl")[2]}]
    resumed = play(tmp_path, 3)
    assert resumed.contributions == play(None, 3).contributions
    moved = lines_of(tmp_path / "dropped.jsonl")
    assert all(line.pop("time").endswith("+00:00") for line in moved)
    assert moved == dropped
    read_state_folder(tmp_path)


# --- keys, evaluations and failures -------------------------------------------------------------------------


def test_two_members_that_were_swapped_are_found(tmp_path: Path, invoke: Callable[..., Result]) -> None:
    result = play(tmp_path, 2)
    keys = {name: f"key-{hashlib.sha256(name.encode()).hexdigest()[:16]}" for name in "abc"}
    assert [line["keys"] for line in result.records] == [keys, keys]
    names = json.loads((tmp_path / "names.json").read_text())
    swapped = {**names, keys["a"]: "b", keys["b"]: "a"}
    (tmp_path / "names.json").write_text(json.dumps(swapped))
    with pytest.raises(CelmError, match=r"names\.json was changed: key-.* is named '[ab]'"):
        play(tmp_path, 3)
    done = invoke("audit-verify", tmp_path)
    assert done.exit_code == 2
    assert "names.json was changed" in done.stderr
    (tmp_path / "names.json").unlink()  # the record has the names
    grid = SmallGrid(clients())
    grid.registered |= {"a": "b", "b": "a"}
    assert [line["keys"] for line in play(tmp_path, 3, grid).records] == [keys] * 3
    assert invoke("audit-verify", tmp_path).exit_code == 0


def test_a_member_with_a_new_key_is_an_amendment(tmp_path: Path) -> None:
    result = play(tmp_path, 2)
    before = result.records[0]["keys"]["b"]
    after = f"key-{hashlib.sha256(b'new').hexdigest()[:16]}"
    path = tmp_path / "names.json"
    path.write_text(path.read_text().replace(before, after))
    grid = SmallGrid({"a": clients()["a"], "new": clients()["b"], "c": clients()["c"]})
    again = play(tmp_path, 3, grid)
    assert ("key of b", before, after) in amendments(again)[2]
    assert again.records[2]["keys"]["b"] == after
    assert sorted(again.contributions[3]) == ["a", "b", "c"]
    read_federation(tmp_path)


def with_failures(folder: Path, rounds: int = 4) -> Path:
    """A federation in which every second attempt fails."""
    calls = iter(range(100))
    grid = SmallGrid(clients())
    grid.clients["a"] = lambda message: learner(0.1)(message) if next(calls) % 2 else None
    strategy(folder, min_clients=3).start(
        grid, initial(), rounds, evaluate_fn=lambda number, _: MetricRecord({"accuracy": number / 10})
    )
    return folder


def change(lines: list[str]) -> list[str]:
    changed = lines[1].replace('"accuracy": 0.', '"accuracy": 0.9').replace("no reply", "a reply")
    assert changed != lines[1]
    return [lines[0], changed, *lines[2:]]


def remove(lines: list[str]) -> list[str]:
    return [lines[0], *lines[2:]]


def reorder(lines: list[str]) -> list[str]:
    return [lines[0], lines[2], lines[1], *lines[3:]]


def empty(lines: list[str]) -> list[str]:
    return []


def strip(lines: list[str]) -> list[str]:
    """As if an older celm had written them."""
    plain = [json.loads(line) for line in lines]
    return [json.dumps({k: v for k, v in line.items() if k not in ("previous", "heads")}) for line in plain]


def forge(lines: list[str]) -> list[str]:
    """Another first line, with a chain of its own."""
    forged, previous = [], "0" * 64
    for line in change(lines):
        forged.append(json.dumps({**json.loads(line), "previous": previous}))
        previous = sha256(forged[-1])
    return forged


@pytest.mark.parametrize("act", [change, remove, reorder, empty, strip, forge])
@pytest.mark.parametrize("name", ["evaluations.jsonl", "failures.jsonl"])
def test_changed_evaluations_and_failures_are_found(
    tmp_path: Path, act: Callable[[list[str]], list[str]], name: str, invoke: Callable[..., Result]
) -> None:
    path = with_failures(tmp_path) / name
    read_state_folder(tmp_path)
    path.write_text("".join(line + "\n" for line in act(path.read_text().splitlines())))
    done = invoke("audit-verify", tmp_path)
    assert (done.exit_code, name in done.stderr) == (2, True), done.output
    with pytest.raises(CelmError, match=name):
        play(tmp_path, 5, min_clients=3)


def test_the_last_lines_are_found_with_the_newest_digest(
    tmp_path: Path, invoke: Callable[..., Result]
) -> None:
    with_failures(tmp_path)
    shown = json.loads(invoke("audit-verify", tmp_path, "--format", "json").stdout)
    evaluations = tmp_path / "evaluations.jsonl"
    lines = evaluations.read_text().splitlines()
    assert shown["newest"] == sha256(lines[-1])
    assert invoke("audit-verify", tmp_path, "--last", shown["newest"]).exit_code == 0
    done = invoke("audit-verify", tmp_path, "--last", shown["last"])
    assert done.exit_code == 0
    assert "does not cover 1 later lines" in done.stdout
    evaluations.write_text("".join(line + "\n" for line in lines[:-1]))
    assert invoke("audit-verify", tmp_path, "--last", shown["last"]).exit_code == 0
    done = invoke("audit-verify", tmp_path, "--last", shown["newest"])
    assert (done.exit_code, "no line of" in done.stderr) == (2, True)
    done = invoke("audit-verify", tmp_path, "--last", sha256(lines[-2]))
    assert (done.exit_code, "continues after" in done.stderr) == (2, True)


# --- who may read it ----------------------------------------------------------------------------------------


@pytest.fixture
def umask() -> Iterator[Callable[[int], int]]:
    before = os.umask(0o022)
    yield os.umask
    os.umask(before)


def modes(folder: Path) -> dict[str, int]:
    return {
        str(path.relative_to(folder)): stat.S_IMODE(path.stat().st_mode)
        for path in (folder, *folder.rglob("*"))
    }


def check_private(folder: Path) -> None:
    for name, mode in modes(folder).items():
        assert mode == (0o700 if (folder / name).is_dir() else 0o600), f"{name}: {mode:o}"


@pytest.mark.skipif(os.name != "posix", reason="permissions are those of POSIX")
@pytest.mark.parametrize("mask", [0o000, 0o022, 0o077, 0o177])
def test_only_the_owner_may_read_a_state_whatever_the_umask(
    tmp_path: Path, umask: Callable[[int], int], mask: int
) -> None:
    umask(mask)
    folder = tmp_path / "state"
    with_failures(folder, 3)
    (folder / "checkpoints" / "round-000003.safetensors").unlink()
    play(folder, 3, min_clients=3)
    assert len(modes(folder)) >= 11
    check_private(folder)


@pytest.mark.skipif(os.name != "posix", reason="permissions are those of POSIX")
def test_an_open_folder_is_closed_when_the_server_starts(tmp_path: Path, umask: Callable[[int], int]) -> None:
    folder = copy_older_folder(tmp_path)
    (folder / "own.txt").touch()
    for path in (folder, *folder.rglob("*")):
        path.chmod(0o777 if path.is_dir() else 0o666)
    play(folder, 20, rule_options={"warmup_fraction": 0.1})
    assert modes(folder)["own.txt"] == 0o666  # not a file of the federation
    (folder / "own.txt").unlink()
    check_private(folder)


# --- a reader beside the server -----------------------------------------------------------------------------


def test_a_record_is_whole_whenever_it_is_read(tmp_path: Path) -> None:
    """Three files grow while they are read: a line must not seem to follow one that is missing."""
    server = threading.Thread(target=with_failures, args=(tmp_path, 40))
    server.start()
    read = 0
    while server.is_alive():
        if (tmp_path / "checkpoints" / "round-000001.safetensors").exists() or read:
            read_state_folder(tmp_path)
            read += 1
    server.join()
    assert read > 1
    assert len(read_state_folder(tmp_path).records) == 40
