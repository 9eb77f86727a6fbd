"""Members that keep signed heads: what a server can no longer do unseen. Messages are Flower's, replies hand-made."""

from __future__ import annotations

import base64
import hashlib
import json
import shutil
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("flwr", reason="Flower is not installed: pip install 'celm[flower]'")

from flwr.app import ConfigRecord, Message

from celm.base.errors import CelmError
from celm.records.signed.kept_heads import KeptHeads, compare_heads
from celm.records.signed.keys import PublicKey
from celm.records.signed.proofs import ForkError
from support.signed_folders import (
    REWRITES,
    Edit,
    make_key,
    play_signed,
    public,
    rewrite,
    sign_every_round,
    watching,
)
from support.small_grid import Client, SmallGrid, config_of, learner
from support.state_folders import clients, copy_older_folder, lines_of, play


def kept(folder: Path, key: Path) -> list[int]:
    return [head.round for head in KeptHeads(folder, PublicKey.read(public(key))).read()]


def test_a_member_keeps_the_head_of_each_round_and_the_record_names_it_as_witness(tmp_path: Path) -> None:
    key, member = make_key(tmp_path), tmp_path / "member"
    result = play_signed(tmp_path / "state", 4, key, {"b": watching(learner(-0.2), member, key)})
    assert kept(member, key) == [1, 2, 3]
    heads = lines_of(tmp_path / "state" / "heads.jsonl")[1:]
    echoed = [line.get("witnesses", {}) for line in result.records]
    assert echoed[0] == {}
    digests = [hashlib.sha256(base64.b64decode(head["payload"])).hexdigest() for head in heads]
    assert echoed[1:] == [{"b": digest} for digest in digests[:3]]


def test_an_evaluation_brings_the_head_of_its_own_round(tmp_path: Path) -> None:
    key, member = make_key(tmp_path), tmp_path / "member"
    watcher = {"b": watching(learner(-0.2), member, key)}
    play_signed(tmp_path / "state", 3, key, watcher, fraction_evaluate=1.0)
    assert kept(member, key) == [1, 2, 3]


def test_clients_without_the_helper_train_as_they_do_without_a_key(tmp_path: Path) -> None:
    signed = play_signed(tmp_path / "signed", 3, make_key(tmp_path))
    unsigned = play(tmp_path / "unsigned", 3)
    for key in ("model", "client_weights", "earned", "received"):
        assert [line[key] for line in signed.records] == [line[key] for line in unsigned.records]
    assert not (tmp_path / "unsigned" / "heads.jsonl").exists()
    assert "salt" not in unsigned.records[0]


def refusal_of(folder: Path, rounds: int, key: Path, member: Path) -> str:
    """Return why the member refuses the head of the next round."""
    watcher = watching(learner(-0.2), member, key)
    with pytest.raises(ForkError) as refusal:
        play_signed(folder, rounds, key, {"b": watcher})
    return str(refusal.value)


@pytest.mark.parametrize("edit", REWRITES.values(), ids=REWRITES)
@pytest.mark.parametrize("resigned", ["last round", "all rounds"])
def test_a_server_that_rewrites_its_record_is_refused_by_a_member_that_kept_a_head(
    tmp_path: Path, edit: Edit, resigned: str
) -> None:
    """The server holds the key: it chains and signs the changed record anew, at once or round by round."""
    key, member, state = make_key(tmp_path), tmp_path / "member", tmp_path / "state"
    play_signed(state, 4, key, {"b": watching(learner(-0.2), member, key)})
    rewrite(state, edit)
    with pytest.raises(
        CelmError, match="was changed"
    ):  # its own server notices, while the old heads are there
        play_signed(state, 5, key)
    if resigned == "all rounds":
        sign_every_round(state, key)
    else:
        (state / "heads.jsonl").unlink()
    assert "round 3" in refusal_of(state, 5, key, member)
    assert kept(member, key) == [1, 2, 3]


def test_a_server_that_shortens_its_record_is_refused(tmp_path: Path) -> None:
    key, member, state = make_key(tmp_path), tmp_path / "member", tmp_path / "state"
    watcher = {"b": watching(learner(-0.2), member, key)}
    play_signed(state, 3, key, watcher)
    shutil.copytree(state, tmp_path / "early")
    play_signed(state, 5, key, watcher)
    assert kept(member, key) == [1, 2, 3, 4]
    assert "FORK" in refusal_of(tmp_path / "early", 4, key, member)


def test_a_server_that_begins_a_new_record_is_refused(tmp_path: Path) -> None:
    key, member = make_key(tmp_path), tmp_path / "member"
    play_signed(tmp_path / "state", 3, key, {"b": watching(learner(-0.2), member, key)})
    assert "another record" in refusal_of(tmp_path / "new", 2, key, member)


def test_a_server_that_serves_two_heads_is_caught_when_members_compare(tmp_path: Path) -> None:
    """Each member sees one consistent history; only together do they see two."""
    key, state = make_key(tmp_path), tmp_path / "state"
    play_signed(state, 2, key)
    shutil.copytree(state, tmp_path / "other")
    rewrite(tmp_path / "other", lambda lines: lines[1]["earned"].update(a=1.0))
    (tmp_path / "other" / "heads.jsonl").unlink()
    folders = {"b": (tmp_path / "north", state), "c": (tmp_path / "south", tmp_path / "other")}
    for name, (member, served) in folders.items():
        play_signed(served, 4, key, {name: watching(clients()[name], member, key)})
        assert kept(member, key) == [2, 3]
    heads = [KeptHeads(member, PublicKey.read(public(key))).read() for member, _ in folders.values()]
    with pytest.raises(ForkError, match="two different heads of round 2"):
        compare_heads(*heads)


def test_a_member_that_missed_rounds_gets_the_proof_that_it_needs(tmp_path: Path) -> None:
    key, member = make_key(tmp_path), tmp_path / "member"
    watcher = watching(learner(-0.2), member, key)

    def often_late(message: Message) -> Any:
        """Reply in rounds 1, 2 and 7; in round 3 the reply is lost after the head was kept."""
        round_number = config_of(message)["server-round"]
        if round_number in (4, 5, 6):
            return None
        made = watcher(message)
        return None if round_number == 3 else made

    play_signed(tmp_path / "state", 8, key, {"b": often_late})
    assert kept(member, key) == [1, 2, 6, 7]


def test_with_log_a_member_goes_on_and_keeps_the_old_head(tmp_path: Path) -> None:
    key, member, state = make_key(tmp_path), tmp_path / "member", tmp_path / "state"
    play_signed(state, 3, key, {"b": watching(learner(-0.2), member, key)})
    rewrite(state, REWRITES["rewrites history"])
    (state / "heads.jsonl").unlink()
    result = play_signed(state, 4, key, {"b": watching(learner(-0.2), member, key, on_fork="log")})
    assert kept(member, key) == [1, 2]
    assert "b" in result.records[-1]["received"]
    assert "witnesses" not in result.records[-1]


def test_a_head_of_another_key_is_refused(tmp_path: Path) -> None:
    key, other = make_key(tmp_path), make_key(tmp_path, "other")
    play_signed(tmp_path / "state", 1, key)
    with pytest.raises(CelmError, match="does not vouch"):
        play_signed(tmp_path / "state", 2, key, {"b": watching(learner(0.1), tmp_path / "member", other)})


def echoing(digest: object) -> Client:
    def answer(message: Message) -> Any:
        made = learner(-0.2)(message)
        made.content["celm-witness"] = ConfigRecord({"head": digest})  # type: ignore[dict-item, union-attr]
        return made

    return answer


@pytest.mark.parametrize("digest", ["ab" * 32, "x", 7, [1.5]], ids=str)
def test_an_echo_of_something_else_is_not_recorded(tmp_path: Path, digest: object) -> None:
    result = play_signed(tmp_path / "state", 2, make_key(tmp_path), {"b": echoing(digest)})
    assert all("witnesses" not in line for line in result.records)
    assert "b" in result.records[-1]["received"]


def test_an_older_folder_goes_on_and_its_first_head_says_what_it_covers(tmp_path: Path) -> None:
    folder, key, member = copy_older_folder(tmp_path), make_key(tmp_path), tmp_path / "member"
    grid = SmallGrid({**clients(), "b": watching(learner(-0.2), member, key)})
    result = play(folder, 5, grid, signing_key=key, min_clients=1)
    assert len(result.records) == 5
    statements = [json.loads(base64.b64decode(line["payload"])) for line in lines_of(folder / "heads.jsonl")]
    heads = [statement["predicate"] for statement in statements[1:]]
    assert [(head["round"], head["earlier_rounds"]) for head in heads] == [(3, 3), (4, 3), (5, 3)]
    assert kept(member, key) == [3, 4]
