"""One changed value in the files of a run is found, and the file is named; older folders are read."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import Result

import celm
from celm.base.errors import CelmError
from celm.base.files import read_tensors, write_tensors
from celm.records.run_files import RunFiles

EXPERIMENT = celm.Experiment(
    split={"name": "pls", "clients": 3},
    model={"name": "mlp", "widths": [4]},
    rule="fedavg",
    run={"rounds": 3},
)


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return celm.run(EXPERIMENT, tmp_path_factory.mktemp("runs") / "run").folder


@pytest.fixture
def run(original: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(original, tmp_path / "run"))


def change_json(path: Path, change: Callable[[dict[str, Any]], Any]) -> None:
    value = json.loads(path.read_text())
    change(value)
    path.write_text(json.dumps(value, indent=2) + "\n")


def change_round(folder: Path) -> None:
    """Change one weight of the second round in its last digit."""
    path = folder / "rounds.jsonl"
    lines = path.read_text().splitlines()
    record = json.loads(lines[1])
    record["weights"]["client-0"] += 1e-9
    lines[1] = json.dumps(record, ensure_ascii=False)
    path.write_text("\n".join(lines) + "\n")


def change_result(folder: Path) -> None:
    change_json(folder / "result.json", lambda result: result["weights"].update({"client-0": 0.5}))


def change_settings(folder: Path) -> None:
    path = folder / "settings.toml"
    path.write_text(path.read_text().replace("seed = 42", "seed = 43", 1))


def change_model(folder: Path) -> None:
    """Put another model in its place, whole and with its own digest."""
    path = folder / "model.safetensors"
    tensors, metadata = read_tensors(path)
    write_tensors(path, {name: tensor + 1 for name, tensor in tensors.items()}, metadata)


CHANGES = {
    "rounds.jsonl": change_round,
    "result.json": change_result,
    "settings.toml": change_settings,
    "model.safetensors": change_model,
}


def test_the_checksums_are_those_of_sha256sum(run: Path) -> None:
    recorded = json.loads((run / "result.json").read_text())["files"]
    assert recorded == {
        name: hashlib.sha256((run / name).read_bytes()).hexdigest()
        for name in ("settings.toml", "rounds.jsonl", "model.safetensors")
    }
    for path in (run / "checkpoints").iterdir():
        _, metadata = read_tensors(path)
        lines = (run / "rounds.jsonl").read_bytes().splitlines(keepends=True)[: metadata["round"]]
        assert metadata["rounds"] == hashlib.sha256(b"".join(lines)).hexdigest()


@pytest.mark.parametrize("name", CHANGES)
def test_one_changed_value_is_found_and_its_file_named(
    name: str, run: Path, refused: Callable[..., str]
) -> None:
    before = (run / name).read_bytes()
    CHANGES[name](run)
    assert (run / name).read_bytes() != before
    for command in (("report", run), ("run", "--resume", run), ("export", run)):
        assert f"{name} is damaged" in refused(*command)
    (run / name).write_bytes(before)
    assert celm.resume(run).accuracy == celm.Run.read(RunFiles.open(run)).accuracy


def test_a_model_that_is_replaced_after_the_run_was_read_is_found(run: Path) -> None:
    read = celm.Run.read(RunFiles.open(run))
    change_model(run)
    with pytest.raises(CelmError, match=r"model\.safetensors is damaged"):
        read.model()


def test_a_changed_round_is_found_before_the_run_continues(run: Path, refused: Callable[..., str]) -> None:
    (run / "result.json").unlink()
    change_round(run)
    before = (run / "rounds.jsonl").read_bytes()
    line = refused("run", "--resume", run)
    assert "rounds.jsonl is damaged" in line
    assert "round-000003.safetensors" in line
    assert (run / "rounds.jsonl").read_bytes() == before


def test_seconds_are_not_covered_and_checksums_not_printed(run: Path, invoke: Callable[..., Result]) -> None:
    change_json(run / "result.json", lambda result: result.update(seconds=1.5))
    printed = json.loads(invoke("run", "--resume", run, "--format=json").stdout)
    assert printed["seconds"] == 1.5
    assert not {"files", "sha256"} & printed.keys()


def test_a_folder_without_checksums_is_read_and_resumed(run: Path, outcome: Callable[[Path], Any]) -> None:
    def remove_checksums(result: dict[str, Any]) -> None:
        del result["files"], result["sha256"]

    whole = outcome(run)
    change_json(run / "result.json", remove_checksums)
    assert celm.resume(run).accuracy == whole["result"]["accuracy"]
    (run / "result.json").unlink()
    for path in (run / "checkpoints").iterdir():
        tensors, metadata = read_tensors(path)
        del metadata["rounds"]
        write_tensors(path, tensors, metadata)
    celm.resume(run)
    assert outcome(run) == whole
