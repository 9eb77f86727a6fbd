"""The statements of heads.jsonl: signed heads of the record, and the keys that sign them.

Each line is a DSSE envelope. Its statement has one of two predicate types; both have `federation` (the digest of the
record's first line), `previous` (the digest of the statement before, or zeros) and `time`.

https://celm/record-head/v1     the record after a round; the subject is the last line of rounds.jsonl
    round, size, root           the number of rounds; the Merkle tree over their leaves (celm.records.signed.leaves)
    earlier_rounds              how many first rounds were recorded before the record was signed: the head covers them,
                                but they have no leaves of single clients, and no head from their own time

https://celm/record-key/v1      the key of the heads that follow; the subject is the key
    event                       `adopted` (the first key), `rotated` (signed by the old and the new key), or `revoked`
                                (the old key no longer counts; signed by the new key only)
    key, replaces               the new public key as PEM; the id of the old key, or null
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from celm.base.errors import CelmError
from celm.records.hash_chain import GENESIS
from celm.records.signed.envelope import Envelope, sign_statement
from celm.records.signed.keys import PublicKey, SigningKey
from celm.records.signed.leaves import RecordTree

HEAD_TYPE = "https://celm/record-head/v1"
KEY_TYPE = "https://celm/record-key/v1"
ADOPTED, ROTATED, REVOKED = "adopted", "rotated", "revoked"


@dataclass(frozen=True)
class Head:
    """The record after a round, as a statement. Its signature is checked by `celm.records.signed.trust`."""

    envelope: Envelope
    federation: str
    round: int
    size: int
    root: bytes
    line: str
    """The digest of the last line of rounds.jsonl."""
    earlier_rounds: int
    previous: str

    @property
    def digest(self) -> str:
        return self.envelope.digest


@dataclass(frozen=True)
class KeyEvent:
    """The introduction of a key, as a statement."""

    envelope: Envelope
    federation: str
    event: str
    key: PublicKey
    replaces: str | None
    previous: str

    @property
    def digest(self) -> str:
        return self.envelope.digest


Entry = Head | KeyEvent


def parse_entry(value: object, source: str) -> Entry:
    """Return the head or the key event in a JSON value, which was read from `source`."""
    envelope = Envelope.parse(value, source)
    parsers: dict[str, Callable[[Envelope, str], Entry]] = {
        HEAD_TYPE: _parse_head,
        KEY_TYPE: _parse_key_event,
    }
    parse = parsers.get(str(envelope.predicate_type))
    if parse is None:
        raise CelmError(f"{source} is damaged: it is neither a head of a record nor a key of one")
    try:
        return parse(envelope, source)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise CelmError(f"{source} is damaged: its statement lacks a value or has a wrong one") from error


def parse_head(value: object, source: str) -> Head:
    entry = parse_entry(value, source)
    if not isinstance(entry, Head):
        raise CelmError(f"{source} is damaged: it is not a head of a record")
    return entry


def parse_key_event(value: object, source: str) -> KeyEvent:
    entry = parse_entry(value, source)
    if not isinstance(entry, KeyEvent):
        raise CelmError(f"{source} is damaged: it is not a key of a record")
    return entry


def sign_head(tree: RecordTree, round_number: int, previous: str, key: SigningKey) -> Head:
    """Sign the head of the record after a round."""
    line, size = tree.line_digests[round_number - 1], tree.sizes[round_number]
    predicate = {
        "federation": tree.federation,
        "round": round_number,
        "size": size,
        "root": tree.tree.root(size).hex(),
        "earlier_rounds": min(tree.earlier_rounds, round_number),
        "previous": previous,
        "time": _now(),
    }
    envelope = sign_statement({f"rounds.jsonl line {round_number}": line}, HEAD_TYPE, predicate, [key])
    return _parse_head(envelope, "")


def sign_key_event(
    event: str,
    key: SigningKey,
    federation: str,
    previous: str = GENESIS,
    replaces: str | None = None,
    old_key: SigningKey | None = None,
) -> KeyEvent:
    """Sign the introduction of `key`, also with the old key if there is one."""
    predicate = {
        "federation": federation,
        "event": event,
        "key": key.public.pem,
        "replaces": replaces,
        "previous": previous,
        "time": _now(),
    }
    keys = [key] if old_key is None else [old_key, key]
    envelope = sign_statement({"signing key": key.public.id}, KEY_TYPE, predicate, keys)
    return _parse_key_event(envelope, "")


def current_key(entries: Sequence[Entry]) -> PublicKey | None:
    """Return the key that signs the next head; None if no key was adopted."""
    return next((entry.key for entry in reversed(entries) if isinstance(entry, KeyEvent)), None)


def _parse_head(envelope: Envelope, source: str) -> Head:
    values = envelope.predicate
    (subject,) = envelope.statement["subject"]
    return Head(
        envelope,
        _digest(values["federation"]),
        _count(values["round"]),
        _count(values["size"]),
        bytes.fromhex(_digest(values["root"])),
        _digest(subject["digest"]["sha256"]),
        _count(values["earlier_rounds"]),
        _digest(values["previous"]),
    )


def _parse_key_event(envelope: Envelope, source: str) -> KeyEvent:
    values: Mapping[str, Any] = envelope.predicate
    key = PublicKey.parse(values["key"], f"{source}: its key")
    replaces = None if values["replaces"] is None else _digest(values["replaces"])
    if values["event"] not in (ADOPTED, ROTATED, REVOKED) or (replaces is None) != (
        values["event"] == ADOPTED
    ):
        raise ValueError
    return KeyEvent(
        envelope, _digest(values["federation"]), values["event"], key, replaces, _digest(values["previous"])
    )


def _digest(value: object) -> str:
    if not isinstance(value, str) or not re.fullmatch("[0-9a-f]{64}", value):
        raise ValueError
    return value


def _count(value: object) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise ValueError
    return value


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")
