"""Versions of files: the current one is read, all others are one line that says what to do."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from resource import RUSAGE_SELF, getrusage
from typing import Any

import pytest

from celm.base.errors import CelmError
from celm.records.run_records import Environment, RunResult, RunRound
from celm.records.schema import make_line, parse_record, read_record, write_record
from celm.records.study_records import StudyManifest, TableFile, read_errors, read_study_manifest, read_table
from support.run_results import make_result, make_round


def result_file(folder: Path, **changes: Any) -> Path:
    """A result.json; `...` removes a key."""
    content = {**make_result().model_dump(), **changes}
    path = folder / "result.json"
    path.write_text(json.dumps({key: value for key, value in content.items() if value is not ...}))
    return path


def test_a_record_comes_back_as_it_was_written(tmp_path: Path) -> None:
    result = make_result(evidence={"client-0": [1 / 3, 0.0]}, accuracy=1.0, classes=["a\u2028b", "é"])
    write_record(tmp_path / "result.json", result)
    assert read_record(RunResult, tmp_path / "result.json") == result
    assert json.loads((tmp_path / "result.json").read_text())["schema_version"] == 1


@pytest.mark.parametrize(
    ("version", "expected"),
    [
        (..., r"result\.json: no schema_version.*\(run the experiment again"),
        (0, r"result\.json: schema_version 0, this celm reads 1 \(run the experiment again"),
        (2, r"result\.json: schema_version 2, this celm reads 1 \(install a newer celm\)"),
        ("1", r"result\.json: schema_version '1'"),
        (True, r"result\.json: schema_version True"),
        ([], r"result\.json: schema_version \[\]"),
    ],
)
def test_another_version_is_one_line_that_says_what_to_do(
    tmp_path: Path, version: object, expected: str
) -> None:
    with pytest.raises(CelmError, match=expected) as error:
        read_record(RunResult, result_file(tmp_path, schema_version=version))
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"accuracy": ...}, "accuracy"),
        ({"accuracy": "0.5"}, "accuracy"),
        ({"accuracy": 1.5}, "accuracy"),
        ({"seed": 1.5}, "seed"),
        ({"weights": {}}, "weights"),
        ({"weights": {"client-0": None}}, "weights.client-0"),
        ({"evidence": {"client-0": [1.0, -1.0]}}, "evidence.client-0.1"),
        ({"evidence": {"client-0": [1.0]}}, "row"),
        ({"counts": {"client-0": [1, 2, 3]}}, "row"),
        ({"rare_classes": [2]}, "rare_classes"),
    ],
)
def test_a_damaged_value_is_named(tmp_path: Path, changes: dict[str, Any], expected: str) -> None:
    with pytest.raises(CelmError, match=rf"result\.json is damaged: .*{expected}"):
        read_record(RunResult, result_file(tmp_path, **changes))


def test_a_million_damaged_values_are_counted_and_not_listed(tmp_path: Path) -> None:
    """Found by benchmarks/hostile_files.py: a list of the errors took 200 bytes for each byte of the file."""
    path = result_file(tmp_path, per_class=[2] * 1_000_000)
    before = getrusage(RUSAGE_SELF).ru_maxrss
    with pytest.raises(CelmError, match=r"result\.json is damaged: 1,000,000 values are invalid"):
        read_record(RunResult, path)
    unit = 1 if sys.platform == "darwin" else 1024
    assert (getrusage(RUSAGE_SELF).ru_maxrss - before) * unit < 1 << 30


def test_numbers_that_are_not_finite_are_refused(tmp_path: Path) -> None:
    path = result_file(tmp_path)
    path.write_text(path.read_text().replace('"seconds": 1.0', '"seconds": NaN'))
    with pytest.raises(CelmError, match=r"result\.json is damaged: seconds"):
        read_record(RunResult, path)


def test_a_new_optional_key_does_not_stop_an_older_reader(tmp_path: Path) -> None:
    assert read_record(RunResult, result_file(tmp_path, future="key")).accuracy == 0.5


def test_a_line_is_written_with_its_version_and_otherwise_as_it_is() -> None:
    record = make_round(3, lr=1, diagnostics={"any": ["thing", {"x": None}]})
    line = make_line(RunRound, record)
    assert json.dumps(line) == json.dumps({"schema_version": 1, **record})
    assert make_line(RunRound, line) == line
    assert parse_record(RunRound, line, Path("rounds.jsonl")).lr == 1


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"standing": {}}, "unknown key 'standing'"),
        ({"clients": None}, "clients"),
        ({"evidence": {"client-0": [-0.5]}}, "evidence.client-0.0"),
        ({"scores": {"client-0": float("nan")}}, "scores.client-0"),
        ({"observed": {"celm": {"weights": {}}}}, "observed.celm"),
    ],
)
def test_a_line_that_no_reader_could_read_is_not_written(changes: dict[str, Any], expected: str) -> None:
    with pytest.raises(CelmError, match=f"cannot write RunRound: {expected}"):
        make_line(RunRound, make_round(1, **changes))


def test_files_whose_keys_never_changed_are_read_without_a_version(tmp_path: Path) -> None:
    (tmp_path / "table.json").write_text('{"title": "t", "cells": [{"row": "r", "column": "c", "mean": 1}]}')
    (tmp_path / "study.json").write_text('{"command": ["celm", "study", "iid"], "title": "t"}')
    (tmp_path / "environment.json").write_text('{"starts": []}')
    assert [cell.mean for cell in read_table(tmp_path / "table.json").cells] == [1]
    manifest = read_study_manifest(tmp_path / "study.json")
    assert manifest is not None
    assert manifest.commands == [["celm", "study", "iid"]]
    assert read_record(Environment, tmp_path / "environment.json").starts == []


@pytest.mark.parametrize("record_type", [TableFile, StudyManifest, Environment])
def test_newer_versions_of_these_are_refused_too(tmp_path: Path, record_type: type[TableFile]) -> None:
    path = tmp_path / "file.json"
    path.write_text(
        '{"schema_version": 9, "title": "t", "cells": [], "starts": [], "command": ["celm", "study"]}'
    )
    with pytest.raises(CelmError, match=r"file\.json: schema_version 9.*newer celm"):
        read_record(record_type, path)


def test_the_command_of_a_manifest_is_one_of_ours(tmp_path: Path) -> None:
    path = tmp_path / "study.json"
    path.write_text('{"schema_version": 1, "command": ["rm", "-r", "/"], "title": "t"}')
    with pytest.raises(CelmError, match=r"study\.json is damaged: command"):
        read_study_manifest(path)


def test_missing_files_of_a_study_are_not_an_error(tmp_path: Path) -> None:
    assert read_study_manifest(tmp_path / "study.json") is None
    assert read_errors(tmp_path / "errors.json") == {}
