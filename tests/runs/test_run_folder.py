"""A run folder that is damaged, in use, not writable or full: one line, and nothing is lost."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import Result

import celm
from celm.base.errors import CelmError
from celm.base.json_files import append_jsonl, read_jsonl
from celm.experiment.config import Experiment
from celm.runs.run_folder import RunFolder
from support.run_results import make_round

Files = Callable[[Path], dict[str, bytes]]
Outcome = Callable[[Path], dict[str, Any]]

EXPERIMENT = Experiment(
    split={"name": "iid", "clients": 2},
    model={"name": "mlp", "widths": [4]},
    rule={"name": "celm", "warmup": 2},
    probe={"steps": 2},
    run={"rounds": 5},
)


class StopError(Exception):
    pass


def stop_after(number: int) -> Callable[..., None]:
    def watch(done: int, total: int, record: dict[str, Any]) -> None:
        if done == number:
            raise StopError

    return watch


@pytest.fixture
def whole(tmp_path: Path) -> Path:
    celm.run(EXPERIMENT, tmp_path / "whole")
    return tmp_path / "whole"


@pytest.fixture
def broken_off(tmp_path: Path) -> Path:
    """A run of five rounds that got to the third."""
    with pytest.raises(StopError):
        celm.run(EXPERIMENT, tmp_path / "run", stop_after(3))
    return tmp_path / "run"


def append(path: Path, content: bytes) -> None:
    path.write_bytes(path.read_bytes() + content)


def replace_line(path: Path, number: int, content: bytes) -> None:
    lines = path.read_bytes().splitlines(keepends=True)
    lines[number - 1] = content
    path.write_bytes(b"".join(lines))


HARMLESS: dict[str, Callable[[Path], None]] = {
    "torn last line": lambda run: append(run / "rounds.jsonl", b'{"round": 4, "lr"'),
    "line torn within a character": lambda run: append(run / "rounds.jsonl", '{"a": "é'.encode()[:-1]),
    "line beyond the checkpoint": lambda run: append(run / "rounds.jsonl", b'{"round": 4}\n'),
    "torn times": lambda run: append(run / "times.jsonl", b'{"rou'),
    "left over from a kill": lambda run: (run / ".environment.json.0123abcd.part").write_bytes(b"{"),
    "checkpoint left half written": lambda run: (
        run / "checkpoints" / ".round-000004.safetensors.0123abcd.part"
    ).write_bytes(b"xx"),
    "no checkpoints": lambda run: shutil.rmtree(run / "checkpoints"),
    "no facts": lambda run: (run / "environment.json").unlink(),
    "no probes": lambda run: (run / "probes.safetensors").unlink(),
}


@pytest.mark.parametrize("damage", HARMLESS)
def test_what_a_kill_can_leave_behind_does_no_harm(
    whole: Path, broken_off: Path, outcome: Outcome, damage: str
) -> None:
    HARMLESS[damage](broken_off)
    celm.resume(broken_off)
    assert outcome(broken_off) == outcome(whole)
    assert not list(broken_off.rglob(".*"))


def newest(run: Path) -> Path:
    return sorted((run / "checkpoints").iterdir())[-1]


def flip(path: Path, place: float) -> None:
    content = bytearray(path.read_bytes())
    content[int(place * (len(content) - 1))] ^= 0x10
    path.write_bytes(content)


HARMFUL: dict[str, tuple[Callable[[Path], None], str]] = {
    "damaged middle line": (
        lambda run: replace_line(run / "rounds.jsonl", 2, b"{,}\n"),
        "line 2 is not JSON",
    ),
    "middle line of bytes": (
        lambda run: replace_line(run / "rounds.jsonl", 2, b"\xff\n"),
        "line 2 is not JSON",
    ),
    "line that is a list": (
        lambda run: replace_line(run / "rounds.jsonl", 1, b"[]\n"),
        "line 1 is not an object",
    ),
    "missing line": (lambda run: replace_line(run / "rounds.jsonl", 2, b""), "rounds 1 to 3"),
    "lines doubled": (
        lambda run: append(run / "rounds.jsonl", (run / "rounds.jsonl").read_bytes()),
        "rounds 1 to 3",
    ),
    "missing record": (lambda run: (run / "rounds.jsonl").unlink(), "rounds 1 to 3"),
    "settings that are no TOML": (lambda run: append(run / "settings.toml", b"["), "settings.toml"),
    "settings that are not text": (lambda run: append(run / "settings.toml", b"\xff"), "settings.toml"),
    "unknown setting": (lambda run: append(run / "settings.toml", b"\n[rum]\n"), "did you mean 'run'"),
    "another model": (
        lambda run: (run / "settings.toml").write_text(
            (run / "settings.toml").read_text().replace("    4,\n", "    5,\n")
        ),
        "settings.toml was changed",
    ),
    "another number of rounds": (
        lambda run: (run / "settings.toml").write_text(
            (run / "settings.toml").read_text().replace("rounds = ", "rounds = 1")
        ),
        "settings.toml was changed",
    ),
    "checkpoint cut short": (
        lambda run: os.truncate(newest(run), 1000),
        "delete it to resume from the one before",
    ),
    "empty checkpoint": (lambda run: os.truncate(newest(run), 0), "delete it to resume from the one before"),
    **{
        f"byte flipped at {place}": (
            lambda run, place=place: flip(newest(run), place),
            "delete it to resume from the one before",
        )
        for place in (0.0, 0.02, 0.5, 1.0)
    },
}


@pytest.mark.parametrize("damage", HARMFUL)
def test_damage_is_one_line_and_the_folder_stays_as_it_is(
    broken_off: Path, refused: Callable[..., str], kept_files: Files, damage: str
) -> None:
    cause, message = HARMFUL[damage]
    cause(broken_off)
    before = kept_files(broken_off)
    assert message in refused("run", "--resume", broken_off, "--format=json")
    assert kept_files(broken_off) == before


@pytest.mark.parametrize("place", [0.0, 0.02, 0.5, 1.0])
def test_following_the_hint_of_a_damaged_checkpoint_ends_with_the_same_bytes(
    whole: Path, broken_off: Path, refused: Callable[..., str], outcome: Outcome, place: float
) -> None:
    flip(newest(broken_off), place)
    assert "delete it to resume from the one before" in refused("run", "--resume", broken_off)
    newest(broken_off).unlink()
    flip(newest(broken_off), place)
    assert "delete it to start again" in refused("run", "--resume", broken_off)
    newest(broken_off).unlink()
    celm.resume(broken_off)
    assert outcome(broken_off) == outcome(whole)


def test_a_folder_with_only_damaged_settings_is_not_thrown_away(
    tmp_path: Path, refused: Callable[..., str], kept_files: Files
) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "settings.toml").write_text("[run]\nround = 3\n")
    before = kept_files(tmp_path / "run")
    assert "did you mean 'rounds'" in refused("run", "--resume", "run")
    assert kept_files(tmp_path / "run") == before


def test_a_run_in_progress_keeps_other_processes_out(broken_off: Path, refused: Callable[..., str]) -> None:
    holder = subprocess.Popen(
        [
            sys.executable,
            "-c",
            "import sys; from filelock import FileLock\n"
            "with FileLock(sys.argv[1]): print('held', flush=True); sys.stdin.read()",
            broken_off / "run.lock",
        ],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    with holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"held\n"
        assert "is in use by another process" in refused("run", "--resume", broken_off)
        holder.kill()
    assert celm.resume(broken_off).metrics["rounds"] == 5


@pytest.mark.slow
def test_of_two_processes_on_one_folder_the_second_is_told_so(
    tmp_path: Path, start_celm: Callable[..., Any], celm: Callable[..., Any]
) -> None:
    first = start_celm("run", "--out", "run", "--rounds=3000", "--rule=fedavg", "--workers=0")
    while not (tmp_path / "run" / "rounds.jsonl").exists():
        assert first.poll() is None
    second = celm("run", "--resume", "run", "--format=json")
    assert second.returncode == 2
    assert second.stdout == ""
    assert second.stderr.count("\n") == 1
    assert "is in use by another process" in second.stderr
    third = celm("run", "--out", "run")
    assert third.returncode == 2
    assert "is not empty" in third.stderr
    assert first.poll() is None


def test_a_folder_that_holds_something_is_not_written_into(
    tmp_path: Path, refused: Callable[..., str], broken_off: Path, kept_files: Files
) -> None:
    before = kept_files(broken_off)
    assert f"--resume {broken_off}" in refused("run", "--out", broken_off)
    assert kept_files(broken_off) == before
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "letter.txt").write_text("dear")
    assert "choose another" in refused("run", "--out", "mine")
    assert [path.name for path in (tmp_path / "mine").iterdir()] == ["letter.txt"]


def test_missing_parents_are_made_and_impossible_ones_are_told(
    tmp_path: Path, refused: Callable[..., str]
) -> None:
    assert RunFolder.create(tmp_path / "a" / "b" / "c", EXPERIMENT).settings() == EXPERIMENT
    (tmp_path / "file").write_text("")
    assert "cannot create file/run" in refused("run", "--out", "file/run")
    assert "cannot create /proc/" in refused("run", "--out", "/proc/no/run")
    assert "is not a run folder" in refused("run", "--resume", "nowhere")
    assert "is not a run folder" in refused("run", "--resume", "file")


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_folder_that_may_not_be_written_is_told(tmp_path: Path, refused: Callable[..., str]) -> None:
    (tmp_path / "locked").mkdir(mode=0o500)
    assert "permission denied" in refused("run", "--out", "locked/run")


# --- a full disk --------------------------------------------------------------------------------------------


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Callable[[int], Path]]:
    mounted: list[Path] = []

    def mount(kilobytes: int) -> Path:
        place = tmp_path / f"disk-{len(mounted)}"
        place.mkdir()
        arguments = ["mount", "-t", "tmpfs", "-o", f"size={kilobytes}k", "celm-test", place]
        if not shutil.which("mount") or subprocess.run(arguments, capture_output=True).returncode:
            pytest.skip("mounting a small tmpfs takes root and a kernel that lets it")
        mounted.append(place)
        return place

    yield mount
    for place in mounted:
        subprocess.run(["umount", "-l", place], check=True)


def test_a_full_disk_is_one_line_and_the_run_can_go_on_elsewhere(
    tmp_path: Path,
    small_disk: Callable[[int], Path],
    invoke: Callable[..., Result],
    refused: Callable[..., str],
    outcome: Outcome,
    whole: Path,
) -> None:
    settings = tmp_path / "settings.toml"
    settings.write_text(EXPERIMENT.to_toml())
    reached = []
    for kilobytes in range(16, 1000, 4):  # until all of the run fits
        disk = small_disk(kilobytes)
        first = invoke("run", settings, "--out", disk / "run", "--format=json")
        if first.exit_code == 0:
            break
        assert first.exit_code == 2
        assert first.stderr.count("\n") == 1
        assert "no space left on device (free some space and try again)" in first.stderr
        if not (disk / "run").exists():  # not even the settings fitted: nothing is left behind
            continue
        reached.append(len(RunFolder(disk / "run").checkpoint_files()))
        assert "no space left" in refused("run", "--resume", disk / "run")
        elsewhere = tmp_path / f"elsewhere-{kilobytes}"
        shutil.copytree(disk / "run", elsewhere)
        celm.resume(elsewhere)
        assert outcome(elsewhere) == outcome(whole), kilobytes
    assert 0 in reached
    assert 1 in reached


def test_a_line_that_does_not_fit_on_the_disk_leaves_no_trace(small_disk: Callable[[int], Path]) -> None:
    disk = small_disk(16)
    path = disk / "rounds.jsonl"
    append_jsonl(path, {"round": 1, "filler": "a" * 3000})
    before = path.read_bytes()
    # Two pages are left: the first part of the line fits, the rest does not.
    with pytest.raises(CelmError, match="no space left"):
        append_jsonl(path, {"round": 2, "filler": "é" * 8000})
    assert path.read_bytes() == before
    append_jsonl(path, {"round": 2, "filler": "é"})
    assert [line["round"] for line in read_jsonl(path)] == [1, 2]


# --- the record ---------------------------------------------------------------------------------------------


def test_names_with_strange_line_ends_stay_on_their_line(tmp_path: Path) -> None:
    folder, names = RunFolder(tmp_path), ["a\u2028b", "c\x85d", "e\rf\n", "é"]
    for number in (1, 2):
        folder.append_round(make_round(number, clients=names), {"seconds": 1.0})
    assert [line["clients"] for line in folder.records()] == [names, names]
    folder.truncate_to(1)
    assert folder.records() == [{"schema_version": 1, **make_round(1, clients=names)}]
    assert folder.times() == [{"round": 1, "seconds": 1.0}]


def test_only_the_last_two_checkpoints_are_kept(whole: Path) -> None:
    names = [path.name for path in RunFolder(whole).checkpoint_files()]
    assert names == ["round-000004.safetensors", "round-000005.safetensors"]


def test_a_checkpoint_that_a_kill_left_is_removed_when_the_run_is_resumed(
    whole: Path, tmp_path: Path
) -> None:
    run = tmp_path / "killed after its last checkpoint"
    shutil.copytree(whole, run)
    (run / "result.json").unlink()
    older, old = (run / "checkpoints" / f"round-{number:06d}.safetensors" for number in (3, 4))
    shutil.copy(old, older)
    celm.resume(run)
    assert not older.exists()
    assert (run / "result.json").is_file()


def test_each_start_is_noted_with_versions(broken_off: Path) -> None:
    celm.resume(broken_off)
    starts = json.loads((broken_off / "environment.json").read_text())["starts"]
    assert len(starts) == 2
    assert {"celm", "torch", "numpy"} <= set(starts[0]["versions"])
    assert starts[0]["threads"] == 1


def test_a_run_that_is_not_finished_cannot_be_read_as_one(
    broken_off: Path, refused: Callable[..., str], invoke: Callable[..., Result]
) -> None:
    assert "is not finished" in refused("export", broken_off)
    assert f"celm run --resume {broken_off}" in refused("export", broken_off)
