"""heads.jsonl of a state folder when its server is stopped, killed or started otherwise."""

from __future__ import annotations

import json
import shutil
import stat
from pathlib import Path

import pytest

pytest.importorskip("flwr", reason="Flower is not installed: pip install 'celm[flower]'")

from celm.base.errors import CelmError
from celm.live.state_store import StateStore
from celm.records.signed.head_log import read_signed_record
from celm.records.signed.heads import Head
from support.signed_folders import make_key, play_signed
from support.small_grid import SmallGrid, initial
from support.state_folders import clients, lines_of, play, strategy


def signed_rounds(folder: Path) -> list[int]:
    return [head.round for head in read_signed_record(folder).heads.heads]


def test_heads_are_private_and_one_for_each_round(tmp_path: Path) -> None:
    play_signed(tmp_path / "state", 3, make_key(tmp_path))
    assert signed_rounds(tmp_path / "state") == [1, 2, 3]
    assert stat.S_IMODE((tmp_path / "state" / "heads.jsonl").stat().st_mode) == 0o600


def test_a_head_that_a_kill_prevented_is_signed_at_the_next_start(tmp_path: Path) -> None:
    key, state = make_key(tmp_path), tmp_path / "state"
    play_signed(state, 3, key)
    path = state / "heads.jsonl"
    *lines, last = path.read_text().splitlines(keepends=True)
    path.write_text("".join(lines) + last[:50])  # killed while the head was written
    play_signed(state, 4, key)
    assert signed_rounds(state) == [1, 2, 3, 4]
    dropped = lines_of(state / "dropped.jsonl")
    assert [(line["file"], line["line"]) for line in dropped] == [("heads.jsonl", last[:50])]


def test_a_round_that_is_repeated_after_a_kill_was_not_signed_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Killed between line and checkpoint of round 3."""
    key, state = make_key(tmp_path), tmp_path / "state"
    play_signed(state, 2, key)
    killed = strategy(state, signing_key=key)
    folder = killed.state_store.folder
    assert folder is not None

    def kill(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(type(folder), "save_checkpoint", kill)
    with pytest.raises(KeyboardInterrupt):
        killed.start(SmallGrid(clients()), initial(), num_rounds=3)
    killed.close()
    monkeypatch.undo()
    assert len(lines_of(state / "rounds.jsonl")) == 3
    assert signed_rounds(state) == [1, 2]
    play_signed(state, 4, key)
    assert signed_rounds(state) == [1, 2, 3, 4]


def test_heads_beyond_a_removed_checkpoint_are_withdrawn_with_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    key, state = make_key(tmp_path), tmp_path / "state"
    play_signed(state, 3, key)
    sorted((state / "checkpoints").iterdir())[-1].unlink()
    play_signed(state, 3, key)
    assert "report a fork" in caplog.text
    assert signed_rounds(state) == [1, 2, 3]
    dropped = [line["file"] for line in lines_of(state / "dropped.jsonl")]
    assert dropped.count("heads.jsonl") == 1


def test_without_the_key_a_signed_federation_goes_on_unsigned_and_says_so(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    key, state = make_key(tmp_path), tmp_path / "state"
    play_signed(state, 2, key)
    play(state, 4)
    assert "signed up to round 2" in caplog.text
    assert signed_rounds(state) == [1, 2]
    play_signed(state, 5, key)
    assert signed_rounds(state) == [1, 2, 4, 5]  # the head of round 4 covers 3 and 4
    heads = [entry for entry in read_signed_record(state).heads.entries if isinstance(entry, Head)]
    assert {head.earlier_rounds for head in heads} == {0}


def test_another_key_is_refused_before_anything_changes(tmp_path: Path) -> None:
    key, state = make_key(tmp_path), tmp_path / "state"
    play_signed(state, 2, key)
    shutil.copytree(state, tmp_path / "before")
    with pytest.raises(CelmError, match="does not sign this record"):
        play_signed(state, 3, make_key(tmp_path, "other"))
    for name in ("rounds.jsonl", "heads.jsonl", "evaluations.jsonl"):
        assert (state / name).read_bytes() == (tmp_path / "before" / name).read_bytes()


@pytest.mark.parametrize("change", ["cut", "edit"])
def test_a_server_refuses_heads_that_are_not_those_of_its_record(tmp_path: Path, change: str) -> None:
    key, state = make_key(tmp_path), tmp_path / "state"
    play_signed(state, 2, key)
    path = state / "heads.jsonl"
    lines = path.read_text().splitlines()
    if change == "cut":
        lines.pop(1)
    else:
        lines[2] = json.dumps(json.loads(lines[2]) | {"signatures": []})
    path.write_text("".join(f"{line}\n" for line in lines))
    with pytest.raises(CelmError, match=r"heads\.jsonl"):
        play_signed(state, 3, key)


def test_a_key_without_a_folder_or_that_is_no_key_is_refused(tmp_path: Path) -> None:
    key = make_key(tmp_path)
    with pytest.raises(CelmError, match="needs a state folder"):
        StateStore(None, key)
    with pytest.raises(CelmError, match="not a private key"):
        StateStore(tmp_path / "state", key.with_name("key.pub"))
    assert not (tmp_path / "state").exists()
