"""heads.jsonl: what is signed, who vouches for it, and what a proof shows."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("cryptography", reason="cryptography is not installed: pip install 'celm[sign]'")

from celm.base.errors import CelmError
from celm.records.hash_chain import GENESIS, ChainFile, json_digest
from celm.records.signed.envelope import Envelope, sign_statement
from celm.records.signed.head_log import HeadLog, heads_until, read_heads
from celm.records.signed.heads import parse_entry
from celm.records.signed.keys import SigningKey
from celm.records.signed.proofs import verify_proof

CLIENTS = ("north", "south", "east")


def make_rounds(folder: Path, count: int, salted_from: int = 1) -> ChainFile:
    previous, text = GENESIS, ""
    for number in range(1, count + 1):
        record: dict[str, Any] = {"round": number, "asked": [*CLIENTS], "previous": previous}
        record["earned"] = {client: number / (10 + i) for i, client in enumerate(CLIENTS)}
        if number >= salted_from:
            record["salt"] = f"{number:064x}"
        previous = json_digest(record)
        text += json.dumps(record) + "\n"
    path = folder / "rounds.jsonl"
    path.write_text(text)
    return ChainFile.parse(path, path.read_bytes())


def signed(folder: Path, rounds: ChainFile, key: SigningKey, first: int = 1) -> HeadLog:
    """Sign the rounds from `first` on, one after the other."""
    log = HeadLog.read(folder, ChainFile.parse(rounds.path, None))
    lines = zip(rounds.records, rounds.digests, strict=True)
    for number, (record, digest) in enumerate(lines, start=1):
        log.append_round(record, digest)
        if number >= first:
            log.sign(key)
    return log


def as_read(document: dict[str, Any]) -> dict[str, Any]:
    loaded: dict[str, Any] = json.loads(json.dumps(document))
    return loaded


def test_heads_are_read_again_and_chained(tmp_path: Path) -> None:
    key, rounds = SigningKey.make(), make_rounds(tmp_path, 3)
    log = signed(tmp_path, rounds, key)
    assert log.sign(key) is log.last_head  # nothing new to sign
    read = HeadLog.read(tmp_path, rounds)
    assert [head.round for head in read.heads] == [1, 2, 3]
    assert [head.size for head in read.heads] == [4, 8, 12]
    assert [head.line for head in read.heads] == rounds.digests
    assert [entry.previous for entry in read.entries[1:]] == [entry.digest for entry in read.entries[:-1]]
    assert all(head.earlier_rounds == 0 for head in read.heads)


@pytest.mark.parametrize(
    "damage",
    [
        lambda lines: lines[:1] + lines[2:],  # removed
        lambda lines: [lines[0], lines[2], lines[1], lines[3]],  # reordered
        lambda lines: lines[1:],  # without its key
        lambda lines: [*lines, lines[-1]],  # repeated
        lambda lines: [*lines[:2], lines[2].replace('"sig": "', '"sig": "AAAA'), lines[3]],
        lambda lines: [*lines[:2], lines[2].replace('"payload": "', '"payload": "AAAA'), lines[3]],
        lambda lines: ["{}", *lines[1:]],
    ],
    ids=["removed", "reordered", "no key", "repeated", "signature", "payload", "empty"],
)
def test_a_changed_file_of_heads_is_an_error(
    tmp_path: Path, damage: Callable[[list[str]], list[str]]
) -> None:
    rounds = make_rounds(tmp_path, 3)
    signed(tmp_path, rounds, SigningKey.make())
    path = tmp_path / "heads.jsonl"
    path.write_text("".join(f"{line}\n" for line in damage(path.read_text().splitlines())))
    with pytest.raises(CelmError, match=r"heads\.jsonl"):
        HeadLog.read(tmp_path, rounds)


def test_a_record_that_does_not_give_its_heads_is_an_error(tmp_path: Path) -> None:
    signed(tmp_path, make_rounds(tmp_path, 3), SigningKey.make())
    with pytest.raises(CelmError, match="signed head of round 1"):
        HeadLog.read(tmp_path, make_rounds(tmp_path, 3, salted_from=3))
    with pytest.raises(CelmError, match="has a head of round 3"):
        HeadLog.read(tmp_path, make_rounds(tmp_path, 2))


def test_a_proof_shows_one_client_and_verifies_with_the_public_key_alone(tmp_path: Path) -> None:
    key, rounds = SigningKey.make(), make_rounds(tmp_path, 5)
    document = as_read(signed(tmp_path, rounds, key).make_proof(rounds, ("south", 2), 3))
    proof = verify_proof(document, key.public, "x")
    of_round, of_client = proof.leaves
    assert (of_client["client"], of_client["round"], of_client["earned"]) == ("south", 2, 2 / 11)
    assert (of_round["line"], of_round["clients"]) == (rounds.digests[1], 3)
    assert [head.round for head in proof.earlier_heads] == [3]
    shown = json.dumps(document["leaves"])
    assert "north" not in shown
    assert "east" not in shown


def change_leaf(document: dict[str, Any]) -> None:
    document["leaves"][1]["data"] = document["leaves"][1]["data"].replace("south", "north")


def swap_leaves(document: dict[str, Any]) -> None:
    document["leaves"].reverse()


def drop_hash(document: dict[str, Any]) -> None:
    document["leaves"][1]["path"].pop()


def change_consistency(document: dict[str, Any]) -> None:
    document["consistency"][0]["path"][0] = "00" * 32


def change_index(document: dict[str, Any]) -> None:
    document["leaves"][1]["index"] += 1


@pytest.mark.parametrize("change", [change_leaf, swap_leaves, drop_hash, change_consistency, change_index])
def test_a_changed_proof_does_not_verify(tmp_path: Path, change: Callable[[dict[str, Any]], None]) -> None:
    key, rounds = SigningKey.make(), make_rounds(tmp_path, 5)
    document = as_read(signed(tmp_path, rounds, key).make_proof(rounds, ("south", 2), 3))
    verify_proof(document, key.public, "x")
    change(document)
    with pytest.raises(CelmError):
        verify_proof(document, key.public, "x")


def test_leaves_of_different_rounds_are_not_a_proof(tmp_path: Path) -> None:
    key, rounds = SigningKey.make(), make_rounds(tmp_path, 5)
    log = signed(tmp_path, rounds, key)
    document, other = (log.make_proof(rounds, ("south", number), None) for number in (2, 4))
    document["leaves"][0] = other["leaves"][0]
    with pytest.raises(CelmError, match="not those of one client in one round"):
        verify_proof(as_read(document), key.public, "x")


def junk() -> list[Any]:
    return [{}, {"celm_proof": 1}, {"celm_proof": 1, "keys": 3, "head": []}, {"celm_proof": 2}]


@pytest.mark.parametrize("document", junk(), ids=range(4))
def test_another_document_is_not_a_proof(document: Any) -> None:
    with pytest.raises(CelmError, match=r"^x"):
        verify_proof(document, SigningKey.make().public, "x")


def test_every_part_of_a_proof_may_be_damaged(tmp_path: Path) -> None:
    """Each value, at any depth, in turn becomes something else: never a traceback, never a false success."""
    key, rounds = SigningKey.make(), make_rounds(tmp_path, 3)
    document = as_read(signed(tmp_path, rounds, key).make_proof(rounds, ("south", 2), 1))

    def places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
        items = (
            value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
        )
        return [path, *(place for key, item in items for place in places(item, (*path, key)))]

    harmless = {("keys",)}  # without its history, a key that signed the head still vouches for it
    for place in places(document)[1:]:
        for other in (None, 7, -1, "x", [], {}, [[]], 1e300):
            changed = copy.deepcopy(document)
            parent = changed
            for step in place[:-1]:
                parent = parent[step]
            if parent[place[-1]] == other:
                continue
            parent[place[-1]] = other
            try:
                proof = verify_proof(changed, key.public, "x")
            except CelmError:
                continue
            # What remains valid proves less: no leaves, no earlier head.
            assert place[0] in ("keys", "leaves", "consistency"), (place, other)
            assert place in harmless or not (proof.leaves and proof.earlier_heads and proof.paths), (
                place,
                other,
            )


@pytest.mark.parametrize("entry", [0, -1], ids=["key", "head"])
def test_a_signed_statement_with_wrong_values_is_an_error(tmp_path: Path, entry: int) -> None:
    """Whoever holds a key can sign anything."""
    key, rounds = SigningKey.make(), make_rounds(tmp_path, 2)
    envelope = signed(tmp_path, rounds, key).entries[entry].envelope
    good = envelope.predicate
    for name in good.keys() - {"time"}:
        for other in (None, 1.5, -1, True, "x", [], {}, [[]]):
            if good[name] == other:
                continue
            made = sign_statement({"a": "ab" * 32}, str(envelope.predicate_type), good | {name: other}, [key])
            with pytest.raises(CelmError, match=r"^x is damaged|^x: its key"):
                parse_entry(made.to_json(), "x")


def test_a_head_without_its_subject_is_an_error(tmp_path: Path) -> None:
    envelope = signed(tmp_path, make_rounds(tmp_path, 1), SigningKey.make()).entries[-1].envelope
    for subject in (None, 3, [], [{}], [{}, {}], [{"digest": 3}], [{"digest": {"sha256": 3}}]):
        payload = json.dumps({**envelope.statement, "subject": subject}).encode()
        with pytest.raises(CelmError, match=r"^x is damaged"):
            parse_entry(Envelope(payload, envelope.signatures).to_json(), "x")


def test_a_round_without_a_key_has_no_proof_of_a_client(tmp_path: Path) -> None:
    key, rounds = SigningKey.make(), make_rounds(tmp_path, 5, salted_from=4)
    log = signed(tmp_path, rounds, key, first=3)
    assert [(head.round, head.earlier_rounds) for head in log.heads] == [(3, 3), (4, 3), (5, 3)]
    for client_round, since, expected in (
        (("north", 2), None, "recorded without a signing key"),
        (("north", 9), None, "round 9 is not signed"),
        (("nroth", 4), None, "did you mean 'north'"),
        (None, 1, "signed: 3, 4, 5"),
    ):
        with pytest.raises(CelmError, match=expected):
            log.make_proof(rounds, client_round, since)
    assert verify_proof(log.make_proof(rounds, ("north", 4), 3), key.public, "x").leaves


def test_a_rotated_key_is_vouched_for_by_the_old_one(tmp_path: Path) -> None:
    old, new, rounds = SigningKey.make(), SigningKey.make(), make_rounds(tmp_path, 3)
    log = signed(tmp_path, rounds, old)
    log.change_key(new, old)
    assert log.last_head is not None
    assert log.last_head.envelope.is_signed_by(new.public)
    log = HeadLog.read(tmp_path, rounds)
    document = as_read(log.make_proof(rounds, ("south", 2), 1))
    for key in (old, new):
        assert verify_proof(document, key.public, "x").key == new.public
    with pytest.raises(CelmError, match="does not sign this record"):
        log.check_key(old)
    with pytest.raises(CelmError, match="before"):
        log.change_key(old, new)


def test_a_revoked_key_vouches_for_nothing(tmp_path: Path) -> None:
    first, stolen, new = (SigningKey.make() for _ in range(3))
    rounds = make_rounds(tmp_path, 3)
    log = signed(tmp_path, rounds, first)
    log.change_key(stolen, first)
    log.change_key(new, None)
    document = as_read(log.make_proof(rounds, ("south", 2), 1))
    assert verify_proof(document, new.public, "x").leaves
    for key in (first, stolen):
        with pytest.raises(CelmError, match=f"{stolen.public.id[:16]} was revoked"):
            verify_proof(document, key.public, "x")
    # The thief cannot undo it: a head that the stolen key signs is refused, also by the file itself.
    forged = HeadLog(tmp_path, log.tree, log.entries[:-2])
    forged.sign(stolen)
    with pytest.raises(CelmError, match="does not vouch"):
        verify_proof(as_read(forged.make_proof(rounds, None, None)), new.public, "x")


def test_a_rotation_that_the_old_key_did_not_sign_is_refused(tmp_path: Path) -> None:
    old, thief, rounds = SigningKey.make(), SigningKey.make(), make_rounds(tmp_path, 3)
    log = signed(tmp_path, rounds, old)
    log.change_key(thief, thief_signs_as(old, thief))
    with pytest.raises(CelmError, match="signature of a key does not match"):
        verify_proof(as_read(log.make_proof(rounds, None, None)), old.public, "x")


def thief_signs_as(old: SigningKey, thief: SigningKey) -> Any:
    class Impostor:
        public = old.public

        def sign(self, content: bytes) -> bytes:
            return thief.sign(content)

    return Impostor()


def test_heads_until_a_round_drop_a_key_without_heads(tmp_path: Path) -> None:
    log = signed(tmp_path, make_rounds(tmp_path, 3), SigningKey.make())
    assert [heads_until(log.entries, number) for number in range(5)] == [0, 2, 3, 4, 4]
    with (tmp_path / "heads.jsonl").open("ab") as file:
        file.write(b'{"payload": "inc')
    assert len(read_heads(tmp_path)) == 4


def test_a_client_gets_proofs_from_the_heads_that_it_may_have_kept(tmp_path: Path) -> None:
    key, rounds = SigningKey.make(), make_rounds(tmp_path, 60)
    log = signed(tmp_path, rounds, key)

    def sizes(echoed: str | None) -> list[int]:
        update = log.make_update(echoed)
        assert update is not None
        return [step["size"] // 4 for step in update["consistency"]]

    assert sizes(None) == [59]
    assert sizes(log.heads[-1].digest) == [59]
    assert sizes(log.heads[49].digest) == list(range(50, 60))
    assert sizes(log.heads[2].digest) == [*range(3, 19), *range(44, 60)]
    verify_proof(as_read(log.make_update(log.heads[2].digest) or {}), key.public, "x")
