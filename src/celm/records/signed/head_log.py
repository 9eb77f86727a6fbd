"""heads.jsonl of a state folder: the signed heads of its record, and the keys that signed them.

A head is signed after the checkpoint of its round. So a round that is repeated after a kill was never signed before. A
head that is missing after a kill is signed when the server starts again. Heads beyond the last checkpoint remain only
if checkpoints were removed; like other lines beyond it, they are moved to dropped.jsonl.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from celm.base.client_order import natural_sorted
from celm.base.errors import CelmError, suggest_name
from celm.base.files import os_errors_as_celm_error
from celm.base.json_files import append_jsonl, parse_jsonl
from celm.records.federation_chain import read_federation_chain
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
from celm.records.signed.leaves import RecordTree, clients_of, has_client_leaves, line_leaves
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
    def read(cls, folder: Path, rounds: ChainFile, entries: Sequence[Entry] | None = None) -> HeadLog:
        """Read the heads in `folder`, unless they are given, and check them against the record."""
        tree, entries = RecordTree.of_rounds(rounds), read_heads(folder) if entries is None else entries
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
        if last is not None and last.round == self.tree.rounds and self.entries[-1] is last:
            return last
        if not self.entries:
            self._append(sign_key_event(ADOPTED, key, self.tree.federation))
        return self._sign_round(self.tree.rounds, key)

    def _sign_round(self, round_number: int, key: SigningKey) -> Head:
        head = sign_head(self.tree, round_number, self._previous, key)
        self._append(head)
        return head

    def change_key(self, new_key: SigningKey, old_key: SigningKey | None) -> Head:
        """Record a new key, and sign the newest signed round again with it. Without the old key, that key is revoked.

        A later round may not have a checkpoint yet, so it is left to the server.
        """
        current, last = current_key(self.entries), self.last_head
        if current is None or last is None:
            raise CelmError(
                f"the record is not signed: {self.path} has no head", "set signing_key of the strategy"
            )
        if old_key is not None:
            self.check_key(old_key)
        if new_key.public.id in {event.key.id for event in self.events}:
            raise CelmError(
                f"the record had the key {new_key.public.id[:16]} before", "make a new one: celm keys make"
            )
        event = ROTATED if old_key is not None else REVOKED
        entry = sign_key_event(event, new_key, self.tree.federation, self._previous, current.id, old_key)
        self._append(entry)
        return self._sign_round(last.round, new_key)

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

    def make_proof(
        self, rounds: ChainFile, client_round: tuple[str, int] | None, since: int | None
    ) -> dict[str, Any]:
        """Return a proof of the lines `rounds`: of a client in a round, and that the head of round `since` goes on."""
        head = self.last_head
        if head is None:
            raise CelmError(
                f"the record is not signed: {self.path} has no head", "set signing_key of the strategy"
            )
        document = self._document(head)
        if client_round is not None:
            document["leaves"] = self._client_leaves(rounds, *client_round, head)
        if since is not None:
            old = next((old for old in reversed(self.heads) if old.round == since), None)
            if old is None:
                signed = ", ".join(map(str, natural_sorted({str(old.round) for old in self.heads})))
                raise CelmError(f"--since {since}: no head of round {since} is signed", f"signed: {signed}")
            document["consistency"] = [self._consistency(old, head) | {"head": old.envelope.to_json()}]
        return document

    def _client_leaves(
        self, rounds: ChainFile, client: str, round_number: int, head: Head
    ) -> list[dict[str, Any]]:
        """Return the leaf of a round, and that of a client in it, with their paths."""
        if not 1 <= round_number <= head.round:
            raise CelmError(
                f"round {round_number} is not signed", f"the newest signed head is of round {head.round}"
            )
        record = rounds.records[round_number - 1]
        if not has_client_leaves(record):
            raise CelmError(
                f"round {round_number} was recorded without a signing key: only its whole line is covered",
                "show the member rounds.jsonl, or ask for a later round",
            )
        clients = clients_of(record)
        if client not in clients:
            raise CelmError(f"round {round_number} has no client '{client}'", suggest_name(client, clients))
        leaves = line_leaves(record, rounds.digests[round_number - 1])
        start = self.tree.sizes[round_number - 1]
        return [
            {
                "data": leaves[offset].decode(),
                "index": start + offset,
                "path": [node.hex() for node in self.tree.tree.inclusion_proof(start + offset, head.size)],
            }
            for offset in (0, 1 + clients.index(client))
        ]

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


class SignedRecord(NamedTuple):
    """The heads of a record, and its lines. They agree."""

    heads: HeadLog
    rounds: ChainFile


def read_signed_record(folder: Path) -> SignedRecord:
    """Read a state folder, to which a server may append lines meanwhile. Raise CelmError if its files do not agree."""
    entries = read_heads(folder)  # first, so that every head has its line
    rounds = read_federation_chain(folder).rounds
    return SignedRecord(HeadLog.read(folder, rounds, entries), rounds)
