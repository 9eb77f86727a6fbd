"""The state folder of a live federation: which folder it is, and what of it is checked."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest

from celm.base.errors import CelmError
from celm.records.federation_files import (
    is_state_folder,
    read_federation,
    read_settings,
    read_state_folder,
    write_settings,
)

SETTINGS = {
    "schema_version": 1,
    "rule": {"name": "celm"},
    "rounds": 4,
    "classes": 2,
    "seed": 1,
    "name": "Süd",
}


def sha256(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def write_state(folder: Path, settings: dict[str, Any] = SETTINGS, **changes: Any) -> Path:
    """Two rounds, written as the documents describe them and not by the code that reads them."""
    previous = "0" * 64
    with (folder / "rounds.jsonl").open("w") as file:
        for number in (1, 2):
            line = {
                "schema_version": 1,
                "round": number,
                "time": "2026-05-01T10:00:00+00:00",
                "asked": ["a", "b"],
                "absent": [],
                "received": {"a": {"sha256": "f" * 64, "samples": 3}},
                "excluded": {"b": "no reply"},
                "unexpected": [],
                "weights": {"a": 1.0},
                "client_weights": {"a": 0.5, "b": 0.5},
                "scores": {"a": 1.0},
                "evidence": {"a": [1.0, 0.0]},
                "diagnostics": {"idle": [], "anything": {"of": ["a", "rule"]}},
                "metrics": {"loss": 0.5},
                "start": "0" * 64,
                "model": "e" * 64,
                **changes,
                "settings": sha256(json.dumps(settings, ensure_ascii=False)),
                "versions": {"celm": "0.1.0"},
                "previous": previous,
            }
            text = json.dumps({key: value for key, value in line.items() if value is not ...})
            previous = sha256(text)
            file.write(text + "\n")
    (folder / "settings.json").write_text(json.dumps(settings, indent=2))
    return folder


def test_a_whole_folder_is_read(tmp_path: Path) -> None:
    federation = read_federation(write_state(tmp_path))
    last = (tmp_path / "rounds.jsonl").read_text().splitlines()[-1]
    assert federation.digest == sha256(last) == read_state_folder(tmp_path, sha256(last)).digest
    assert [line.round for line in federation.rounds] == [1, 2]
    assert federation.rounds[1].client_weights == {"a": 0.5, "b": 0.5}
    assert federation.rounds[1].diagnostics.idle == []
    assert federation.rounds[1].received["a"].samples == 3
    assert (federation.settings.classes, federation.settings.rounds) == (2, 4)
    assert federation.settings.model_dump()["name"] == "Süd"
    assert federation.failures == []


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"evidence": {"a": [1.0]}}, "evidence"),
        ({"client_weights": {}}, "client_weights"),
        ({"client_weights": None}, "line 1: client_weights"),
        ({"asked": ...}, "line 1: asked"),
        ({"received": {"a": {"sha256": "f" * 64, "samples": "3"}}}, "line 1: received.a.samples"),
    ],
)
def test_a_damaged_line_is_named(tmp_path: Path, changes: dict[str, Any], expected: str) -> None:
    with pytest.raises(CelmError, match=f"rounds.jsonl is damaged: {expected}"):
        read_federation(write_state(tmp_path, **changes))


def test_an_older_record_is_verified_but_not_reported(tmp_path: Path) -> None:
    """The chain is of bytes, whatever the keys. The old name of the weights must not pass for a missing one."""
    folder = write_state(tmp_path, schema_version=..., client_weights=..., standing={"a": 1.0})
    assert len(read_state_folder(folder).records) == 2
    with pytest.raises(CelmError, match=r"rounds\.jsonl: no schema_version.*\(use a new folder"):
        read_federation(folder)


def test_older_and_newer_settings_are_refused(tmp_path: Path) -> None:
    older = {key: value for key, value in SETTINGS.items() if key != "schema_version"}
    write_state(tmp_path, older)
    for read in (read_federation, lambda folder: read_settings(folder / "settings.json")):
        with pytest.raises(CelmError, match=r"settings\.json: no schema_version"):
            read(tmp_path)
    write_state(tmp_path, {**SETTINGS, "schema_version": 2})
    with pytest.raises(CelmError, match=r"settings\.json: schema_version 2.*newer celm"):
        read_federation(tmp_path)


def test_settings_come_back_as_they_were_written(tmp_path: Path) -> None:
    write_settings(tmp_path / "settings.json", SETTINGS)
    assert read_settings(tmp_path / "settings.json") == SETTINGS
    assert list(json.loads((tmp_path / "settings.json").read_text())) == list(SETTINGS)
    with pytest.raises(CelmError, match="classes"):
        write_settings(tmp_path / "settings.json", {**SETTINGS, "classes": "ten"})


@pytest.mark.parametrize("content", ['{"rounds": 5}', '{"rounds": NaN}', "[" * 100_000, "[]"])
def test_settings_that_the_record_does_not_name_are_found(tmp_path: Path, content: str) -> None:
    write_state(tmp_path)
    (tmp_path / "settings.json").write_text(content)
    with pytest.raises(CelmError, match=r"settings\.json"):
        read_state_folder(tmp_path)


def test_a_record_can_be_passed_on_without_its_settings(tmp_path: Path) -> None:
    write_state(tmp_path)
    (tmp_path / "settings.json").unlink()
    assert read_state_folder(tmp_path).settings is None
    with pytest.raises(CelmError, match=r"settings\.json"):
        read_federation(tmp_path)


@pytest.mark.parametrize("line", ["NaN", "[]", "[" * 100_000, '{"round": 1, "previous": [], "settings": {}}'])
def test_nonsense_is_an_error_of_one_line(tmp_path: Path, line: str) -> None:
    write_state(tmp_path)
    (tmp_path / "rounds.jsonl").write_text(line + "\n")
    with pytest.raises(CelmError):
        read_state_folder(tmp_path)


def test_a_state_is_told_from_a_run_and_from_an_audit(tmp_path: Path) -> None:
    def folder(*names: str) -> Path:
        path = tmp_path / "-".join(names)
        path.mkdir()
        for name in names:
            (path / name).touch()
        return path

    assert is_state_folder(folder("settings.json", "rounds.jsonl"))
    assert is_state_folder(folder("settings.json", "names.json"))  # the record itself is missing
    assert not is_state_folder(folder("settings.toml", "rounds.jsonl"))
    assert not is_state_folder(folder("settings.json", "ledger.json"))
    assert not is_state_folder(folder("settings.json", "audit.lock"))
