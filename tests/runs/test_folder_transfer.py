"""A run folder as bytes: it arrives whole, goes on elsewhere, and nothing but a run folder's files travels."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import celm
from celm.base.errors import CelmError
from celm.runs import folder_transfer
from celm.runs.folder_transfer import read_run_files, write_run_files
from celm.runs.run_folder import RunFolder
from celm.runs.runner import continue_run

EXPERIMENT = celm.Experiment.parse(
    {
        "split": {"name": "pls", "clients": 3},
        "rule": {"warmup": 2},
        "probe": {"steps": 2},
        "run": {"rounds": 4},
    }
)


@pytest.mark.slow
def test_a_run_packed_after_any_round_goes_on_elsewhere_to_the_same_bytes(
    tmp_path: Path, outcome: Callable[[Path], dict[str, Any]]
) -> None:
    home = RunFolder.create(tmp_path / "home", EXPERIMENT)
    parcels = [read_run_files(home)]
    continue_run(home, lambda *_: parcels.append(read_run_files(home)))
    assert len(parcels) == 5
    for number, files in enumerate([*parcels, read_run_files(home)]):
        away = RunFolder(tmp_path / f"away-{number}")
        write_run_files(files, away)
        celm.resume(away.path)
        assert outcome(away.path) == outcome(home.path)


def test_newer_files_replace_older_ones_and_older_checkpoints_go(tmp_path: Path) -> None:
    home, away = RunFolder.create(tmp_path / "home", EXPERIMENT), RunFolder(tmp_path / "away")
    continue_run(home, lambda *_: write_run_files(read_run_files(home), away))
    assert [path.name for path in away.checkpoint_files()] == ["round-000004.safetensors"]
    write_run_files(read_run_files(home), away)
    assert away.result() == home.result()


@pytest.mark.parametrize(
    "name",
    ["../result.json", "/etc/passwd", "run.lock", "checkpoints/../../x", "checkpoints/round-1.safetensors"],
)
def test_nothing_but_the_files_of_a_run_folder_is_unpacked(tmp_path: Path, name: str) -> None:
    with pytest.raises(CelmError, match="not a file of a run folder"):
        write_run_files({"settings.toml": b"", name: b"x"}, RunFolder(tmp_path / "away"))
    assert not (tmp_path / "away").exists()


def test_what_is_too_large_does_not_travel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home = RunFolder.create(tmp_path / "home", EXPERIMENT)
    monkeypatch.setattr(folder_transfer, "MAX_RUN_BYTES", 100)
    with pytest.raises(CelmError, match="too large"):
        read_run_files(home)
