"""`celm keys`, `audit-verify` of signed records, and `verify-proof`."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("flwr", reason="Flower is not installed: pip install 'celm[flower]'")

from typer.testing import Result

from celm.base.errors import CelmError
from support.signed_folders import make_key, play_signed, public, rewrite, rewrite_history, watching
from support.small_grid import learner
from support.state_folders import lines_of, play

Invoke = Callable[..., Result]
Refused = Callable[..., str]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A signed record of four rounds in `state`, with its key and the heads that b kept."""
    folder = tmp_path_factory.mktemp("signed")
    key = make_key(folder)
    play_signed(folder / "state", 4, key, {"b": watching(learner(-0.2), folder / "heads", key)})
    return folder


@pytest.fixture
def place(made: Path, tmp_path: Path) -> Path:
    shutil.copytree(made, tmp_path, dirs_exist_ok=True)
    return tmp_path


def document(result: Result) -> dict[str, Any]:
    assert result.exit_code == 0, result.output
    found: dict[str, Any] = json.loads(result.stdout)
    return found


def test_a_member_checks_its_line_with_the_public_key_alone(invoke: Invoke, place: Path) -> None:
    key = public(place / "key")
    written = document(
        invoke("audit-verify", "state", "--key", key, "--proof", "b", 3, "--since", 2, "--format", "json")
    )
    assert written["verified"]
    assert written["proof"] == "proof.json"
    assert written["signed"]["round"] == 4
    assert written["signed"]["witnesses"] == {"b": 3}
    record = lines_of(place / "state" / "rounds.jsonl")[2]
    shutil.rmtree(place / "state")  # the member does not have it
    proof = document(invoke("verify-proof", "proof.json", "--key", key, "--format", "json"))
    assert (proof["client"], proof["client_round"], proof["round"]) == ("b", 3, 4)
    assert proof["continues"] == [2]
    for name in ("earned", "client_weights", "received"):
        assert proof["leaf"][name] == record[name]["b"]
    assert proof["round_leaf"]["model"] == record["model"]
    text = invoke("verify-proof", "proof.json", "--key", key, "--head", "heads/heads.jsonl")
    assert text.exit_code == 0
    assert f"earned: {record['earned']['b']}" in text.stdout
    assert "nothing up to round 2 was changed" in text.stdout


def test_the_last_signed_head_has_the_digest_that_last_takes(invoke: Invoke, place: Path) -> None:
    invoke("audit-verify", "state", "--since", 1)
    last = document(invoke("verify-proof", "proof.json", "--key", "key.pub", "--format", "json"))["last"]
    assert invoke("audit-verify", "state", "--last", last).exit_code == 0


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (("audit-verify", "state", "--proof", "nobody", 3), "no client 'nobody'"),
        (("audit-verify", "state", "--proof", "b", 9), "round 9 is not signed"),
        (("audit-verify", "state", "--since", 9), "signed: 1, 2, 3, 4"),
        (("audit-verify", "state", "--out", "x.json"), "--out needs"),
        (("audit-verify", "state", "--key", "other.pub"), "does not vouch"),
        (("audit-verify", "state", "--key", "key"), "not a public key"),
        (("audit-verify", "unsigned", "--key", "key.pub"), "not signed"),
        (("audit-verify", "unsigned", "--proof", "b", 1), "not signed"),
        (("verify-proof", "state/settings.json", "--key", "key.pub"), "is not a proof"),
        (("verify-proof", "missing.json", "--key", "key.pub"), "cannot read"),
        (("verify-proof", "heads/newest.json", "--key", "other.pub"), "does not vouch"),
        (("verify-proof", "heads/newest.json", "--key", "key.pub", "--head", "key.pub"), "key.pub"),
        (
            ("verify-proof", "heads/newest.json", "--key", "key.pub", "--head", "other.jsonl"),
            "another record",
        ),
        (("keys", "make", "key"), "exists"),
        (("keys", "show", "state/settings.json"), "not a private key"),
        (("keys", "rotate", "state", "--key", "other", "--new", "other"), "does not sign this record"),
        (("keys", "rotate", "state", "--key", "key", "--new", "key"), "before"),
        (("keys", "revoke", "unsigned", "--new", "other"), "not signed"),
        (("keys", "revoke", ".", "--new", "other"), "not a state folder"),
    ],
)
def test_mistakes_are_one_line(
    refused: Refused, place: Path, arguments: tuple[object, ...], expected: str
) -> None:
    play(place / "unsigned", 1)
    other = make_key(place, "other")
    if "other.jsonl" in arguments:
        play_signed(place / "other-state", 1, place / "key")
        shutil.copy(place / "other-state" / "heads.jsonl", place / "other.jsonl")
    assert other.exists()
    assert expected in refused(*arguments)


def test_a_changed_record_no_longer_gives_its_heads(refused: Refused, invoke: Invoke, place: Path) -> None:
    rewrite(place / "state", rewrite_history)
    assert "does not give the signed head of round 2" in refused("audit-verify", "state")
    failed = invoke("audit-verify", "state", "--format", "json")
    assert json.loads(failed.stdout)["verified"] is False


def test_two_members_compare_what_they_were_told(refused: Refused, invoke: Invoke, place: Path) -> None:
    key, told = place / "key", place / "told"
    play_signed(place / "copy", 4, key, {"b": watching(learner(-0.2), told, key)})
    shutil.copytree(told, place / "south")
    arguments = ("verify-proof", "heads/heads.jsonl", "--key", "key.pub", "--head")
    assert "two different heads" in refused(*arguments, "south/heads.jsonl")
    same = document(invoke(*arguments, "heads/heads.jsonl", "--format", "json"))
    assert same["same_as_kept"] == [1, 2, 3]


def test_a_key_is_rotated_and_then_revoked(refused: Refused, invoke: Invoke, place: Path) -> None:
    """Members with the old key go on after a rotation, and are told of a revocation."""
    for name in ("second", "third"):
        assert invoke("keys", "make", name).exit_code == 0
    rotated = invoke("keys", "rotate", "state", "--key", "key", "--new", "second", "--format", "json")
    second = document(invoke("keys", "show", "second.pub", "--format", "json"))["key"]
    assert document(rotated) | {"replaces": ""} == {
        "event": "rotated",
        "key": second,
        "replaces": "",
        "round": 4,
    }
    invoke("audit-verify", "state", "--proof", "b", 2, "--since", 2)
    for key in ("key.pub", "second.pub"):
        assert invoke("verify-proof", "proof.json", "--key", key).exit_code == 0
    play_signed(
        place / "state", 5, place / "second", {"b": watching(learner(-0.2), place / "heads", place / "key")}
    )
    with pytest.raises(CelmError, match="keys rotate"):
        play_signed(place / "state", 6, place / "key")
    assert invoke("keys", "revoke", "state", "--new", "third").exit_code == 0
    invoke("audit-verify", "state", "--proof", "b", 2)
    assert "was revoked" in refused("verify-proof", "proof.json", "--key", "key.pub")
    assert invoke("verify-proof", "proof.json", "--key", "third.pub").exit_code == 0
    assert invoke("audit-verify", "state", "--key", "third.pub").exit_code == 0


def test_keys_are_shown_for_private_and_public_files_alike(invoke: Invoke, place: Path) -> None:
    shown = [document(invoke("keys", "show", name, "--format", "json")) for name in ("key", "key.pub")]
    assert shown[0] == shown[1]
    assert "PRIVATE" not in invoke("keys", "show", "key").stdout
