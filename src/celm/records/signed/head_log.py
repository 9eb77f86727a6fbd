"""heads.jsonl of a state folder: the signed heads of its record, and the keys that signed them.

A head is signed after the checkpoint of its round. So a round that is repeated after a kill was never signed before. A
head that is missing after a kill is signed when the server starts again. Heads beyond the last checkpoint remain only
if checkpoints were removed; like other lines beyond it, they are moved to dropped.jsonl.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from celm.base.errors import CelmError
from celm.base.files import os_errors_as_celm_error
from celm.base.json_files import append_jsonl, parse_jsonl
from celm.records.hash_chain import GENESIS, ChainFile
from celm.records.signed.heads import (
    ADOPTED,
    REVOKED,
    ROTATED,
    Entry,
    Head,
    KeyEvent,
    current_key,
    parse_entry,
    sign_head,
    sign_key_event,
)
from celm.records.signed.keys import SigningKey
from celm.records.signed.leaves import RecordTree
from celm.records.signed.trust import check_entries

HEADS_FILE = "heads.jsonl"
_PROOFS_WITHOUT_ECHO = 1
"""Number of last heads from which a client that echoes none gets consistency proofs."""
_MAX_PROOFS = 16
"""Number of heads from the echoed one on, and of last heads, from which a client gets consistency proofs."""


def read_heads(folder: Path) -> list[Entry]:
    """Return the lines of heads.jsonl; none if there is no file. An incomplete last line does not count."""
    path = folder / HEADS_FILE
    if not path.exists():
        return []
    with os_errors_as_celm_error(path, "read"):
        lines = parse_jsonl(path.read_bytes(), path)
    return [parse_entry(line, f"{path} line {number}") for number, line in enumerate(lines, start=1)]


def heads_until(entries: Sequence[Entry], last_round: int) -> int:
    """Return the number of first entries before a head of a round after `last_round`; a lone key does not count."""
    beyond = [i for i, entry in enumerate(entries) if isinstance(entry, Head) and entry.round > last_round]
    keep = beyond[0] if beyond else len(entries)
    return keep if any(isinstance(entry, Head) for entry in entries[:keep]) else 0


def check_heads(entries: Sequence[Entry], tree: RecordTree, path: Path) -> None:
    """Raise CelmError unless the heads that were read from `path` are those of this record."""
    check_entries(entries, str(path))
    for head in (entry for entry in entries if isinstance(entry, Head)):
        if head.round > tree.rounds or not head.round:
            raise CelmError(
                f"the record was changed: {path} has a head of round {head.round}, "
                f"and rounds.jsonl has {tree.rounds} rounds"
            )
        expected = (
            tree.federation,
            tree.sizes[head.round],
            tree.tree.root(tree.sizes[head.round]),
            tree.line_digests[head.round - 1],
            min(tree.earlier_rounds, head.round),
        )
        if (head.federation, head.size, head.root, head.line, head.earlier_rounds) != expected:
            raise CelmError(
                f"rounds.jsonl was changed: it does not give the signed head of round {head.round}"
            )


class HeadLog:
    """The heads of one record, and its tree. Without a key, nothing is signed."""

    def __init__(self, folder: Path, tree: RecordTree, entries: Sequence[Entry]) -> None:
        self.path = folder / HEADS_FILE
        self.tree = tree
        self.entries: list[Entry] = list(entries)

    @classmethod
    def read(cls, folder: Path, rounds: ChainFile) -> HeadLog:
        """Read the heads in `folder` and check them against the record."""
        tree, entries = RecordTree.of_rounds(rounds), read_heads(folder)
        check_heads(entries, tree, folder / HEADS_FILE)
        return cls(folder, tree, entries)

    @property
    def heads(self) -> list[Head]:
        return [entry for entry in self.entries if isinstance(entry, Head)]

    @property
    def events(self) -> list[KeyEvent]:
        return [entry for entry in self.entries if isinstance(entry, KeyEvent)]

    @property
    def last_head(self) -> Head | None:
        return next((entry for entry in reversed(self.entries) if isinstance(entry, Head)), None)

    def check_key(self, key: SigningKey) -> None:
        """Raise CelmError unless `key` signs the next head."""
        expected = current_key(self.entries)
        if expected is not None and expected.id != key.public.id:
            raise CelmError(
                f"the key {key.public.id[:16]} does not sign this record: {self.path} has the key {expected.id[:16]}",
                "record a new key first: celm keys rotate FOLDER --key OLD --new NEW",
            )

    def sign(self, key: SigningKey) -> Head | None:
        """Sign the head of the record, unless the newest head is signed already. Return the newest head."""
        if not self.tree.rounds:
            return None
        self.check_key(key)
        last = self.last_head
        is_current = last is not None and last.round == self.tree.rounds and self.entries[-1] is last
        if is_current:
            return last
        if not self.entries:
            self._append(sign_key_event(ADOPTED, key, self.tree.federation))
        head = sign_head(self.tree, self._previous, key)
        self._append(head)
        return head

    def change_key(self, new_key: SigningKey, old_key: SigningKey | None) -> None:
        """Record a new key, and sign the record with it. Without the old key, that key is revoked."""
        current = current_key(self.entries)
        if current is None:
            raise CelmError(f"{self.path} has no key yet", "start the server with signing_key=PATH")
        if old_key is not None:
            self.check_key(old_key)
        if new_key.public.id in {event.key.id for event in self.events}:
            raise CelmError(
                f"the record had the key {new_key.public.id[:16]} before", "make a new one: celm keys make"
            )
        event = ROTATED if old_key is not None else REVOKED
        entry = sign_key_event(event, new_key, self.tree.federation, self._previous, current.id, old_key)
        self._append(entry)
        self.sign(new_key)

    def make_update(self, echoed: str | None) -> dict[str, Any] | None:
        """Return the newest head for a client that last echoed the head with this digest; None before the first head.

        It has consistency proofs from the heads that the client may have kept. See `celm.records.signed.proofs`.
        """
        heads = self.heads
        if not heads:
            return None
        older = heads[:-1]
        position = next((i for i, head in enumerate(older) if head.digest == echoed), None)
        kept = older[-_PROOFS_WITHOUT_ECHO:]
        if position is not None:
            since = older[position:]
            kept = since if len(since) <= 2 * _MAX_PROOFS else [*since[:_MAX_PROOFS], *since[-_MAX_PROOFS:]]
        return self._document(heads[-1]) | {
            "consistency": [self._consistency(head, heads[-1]) for head in kept if head.size < heads[-1].size]
        }

    def _document(self, head: Head) -> dict[str, Any]:
        return {
            "celm_proof": 1,
            "keys": [event.envelope.to_json() for event in self.events],
            "head": head.envelope.to_json(),
        }

    def _consistency(self, old: Head, head: Head) -> dict[str, Any]:
        path = self.tree.tree.consistency_proof(old.size, head.size)
        return {"size": old.size, "path": [node.hex() for node in path]}

    @property
    def _previous(self) -> str:
        return self.entries[-1].digest if self.entries else GENESIS

    def _append(self, entry: Entry) -> None:
        append_jsonl(self.path, entry.envelope.to_json(), private=True)
        self.entries.append(entry)

    def append_round(self, record: Mapping[str, Any], digest: str) -> None:
        """Add the line of a finished round to the tree."""
        self.tree.append(record, digest)
