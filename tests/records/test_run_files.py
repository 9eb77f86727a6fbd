"""Run folders: real ones fit their schemas, older and damaged ones are refused in one line."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import celm
from celm.base.errors import CelmError
from celm.base.json_files import read_jsonl
from celm.records.run_files import RunFiles
from celm.records.run_records import RunResult, RunRound

EXPERIMENT = celm.Experiment(
    split={"name": "pls", "clients": 3},
    model={"name": "mlp", "widths": [4]},
    rule="fedavg",
    observe=("celm",),
    probe={"steps": 2},
    run={"rounds": 3, "evaluate_every": 2},
)


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return celm.run(EXPERIMENT, tmp_path_factory.mktemp("runs") / "run").folder


@pytest.fixture
def run(original: Path, tmp_path: Path) -> Path:
    """A finished run of its own."""
    return Path(shutil.copytree(original, tmp_path / "run"))


@pytest.fixture
def unfinished(run: Path) -> Path:
    """A run whose result was not written yet."""
    (run / "result.json").unlink()
    return run


def rewrite_lines(path: Path, change: Callable[[dict[str, Any]], Any]) -> None:
    lines = read_jsonl(path)
    for line in lines:
        change(line)
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))


def make_older(folder: Path) -> None:
    """Give a run folder the keys and file names that it had before files had a version."""

    def rename(line: dict[str, Any]) -> None:
        del line["schema_version"]
        line["standing"] = line.pop("client_weights")

    rewrite_lines(folder / "rounds.jsonl", rename)
    (folder / "environment.json").rename(folder / "facts.json")
    path = folder / "result.json"
    if path.exists():
        result = json.loads(path.read_text())
        del result["schema_version"]
        path.write_text(json.dumps(result))


def test_real_files_have_exactly_the_keys_of_their_schemas(run: Path) -> None:
    keys = {key for line in read_jsonl(run / "rounds.jsonl") for key in line}
    assert keys == RunRound.model_fields.keys() - {"merge"}
    assert json.loads((run / "result.json").read_text()).keys() == RunResult.model_fields.keys()


def test_a_finished_run_is_read(run: Path) -> None:
    finished = RunFiles.open(run).read_finished()
    lines = [json.loads(line) for line in (run / "rounds.jsonl").read_text().splitlines()]
    assert finished.records == lines
    assert [record.round for record in finished.rounds] == [1, 2, 3]
    assert [record.accuracy is None for record in finished.rounds] == [True, False, False]
    assert finished.rounds[2].accuracy == lines[2]["accuracy"] == finished.result.accuracy
    assert finished.rounds[0].observed["celm"].evidence == lines[0]["observed"]["celm"]["evidence"]
    assert finished.experiment == celm.Experiment.read(run / "settings.toml")
    (start,) = RunFiles(run).environments()
    assert start.versions["celm"] == celm.__version__


def test_an_older_finished_run_is_refused_in_one_line(run: Path, refused: Callable[..., str]) -> None:
    make_older(run)
    for command in (("report", run), ("export", run), ("run", "--resume", run)):
        line = refused(*command)
        assert "result.json" in line
        assert "schema_version" in line
        assert "settings.toml" in line  # what to do


def test_an_older_unfinished_run_is_refused_in_one_line_and_left_as_it_is(
    unfinished: Path, refused: Callable[..., str], kept_files: Callable[[Path], dict[str, bytes]]
) -> None:
    make_older(unfinished)
    before = kept_files(unfinished)
    line = refused("run", "--resume", unfinished)
    assert "rounds.jsonl" in line
    assert "schema_version" in line
    assert kept_files(unfinished) == before


def test_a_checkpoint_of_an_older_version_is_refused_in_one_line(
    unfinished: Path, refused: Callable[..., str]
) -> None:
    from celm.base.files import read_tensors, write_tensors

    path = sorted((unfinished / "checkpoints").iterdir())[-1]
    tensors, metadata = read_tensors(path)
    del metadata["schema_version"]
    write_tensors(path, tensors, metadata)
    line = refused("run", "--resume", unfinished)
    assert path.name in line
    assert "schema_version" in line


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (lambda line: line.update(clients="client-0"), "line 1: clients"),
        (lambda line: line.update(round=line["round"] + 1), "rounds 1 to 3"),
        (lambda line: line["observed"]["celm"].update(evidence={"client-0": [1.0]}), "evidence"),
    ],
)
def test_a_damaged_record_is_named(run: Path, change: Callable[[dict[str, Any]], Any], expected: str) -> None:
    rewrite_lines(run / "rounds.jsonl", change)
    with pytest.raises(CelmError, match=rf"rounds\.jsonl is damaged: .*{expected}"):
        RunFiles(run).read_finished()


def test_a_run_without_a_result_is_not_finished(unfinished: Path) -> None:
    assert RunFiles(unfinished).result() is None
    with pytest.raises(CelmError, match=f"--resume {unfinished}"):
        RunFiles(unfinished).read_finished()


def test_the_last_round_is_found_while_the_next_is_written(run: Path) -> None:
    files = RunFiles(run)
    assert files.last_round() == read_jsonl(run / "rounds.jsonl")[-1]
    with (run / "rounds.jsonl").open("a") as file:
        file.write('{"round": 4, "accur')
    assert files.last_round()["round"] == 3
    for content in ("", "[]\n", "no JSON\n", "{}"):
        (run / "rounds.jsonl").write_text(content)
        assert files.last_round() == {}
    (run / "rounds.jsonl").unlink()
    assert files.last_round() == {}


def test_times_at_the_server_are_optional(run: Path) -> None:
    files = RunFiles(run)
    assert sorted(files.server_times()) == [1, 2, 3]
    (run / "times.jsonl").write_text('{"round": 1, "server_seconds": 2}\n{"round": "x"}\n{"round": 3}\n')
    assert files.server_times() == {1: 2.0}
    (run / "times.jsonl").write_text("no JSON\n")
    assert files.server_times() == {}
