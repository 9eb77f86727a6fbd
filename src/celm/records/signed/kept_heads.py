"""The heads that a member keeps: heads.jsonl in a folder of its own.

Two members that compare their heads find out whether the server told them different things. A member that kept one
head finds out whether anything up to its round was changed since.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from celm.base.errors import CelmError
from celm.base.files import read_text
from celm.base.json_files import append_jsonl, parse_jsonl, read_jsonl
from celm.records.signed.heads import Head, KeyEvent, parse_entry
from celm.records.signed.keys import PublicKey
from celm.records.signed.proofs import ForkError, VerifiedProof, verify_proof, write_proof
from celm.records.signed.trust import vouched_key

KEPT_FILE, NEWEST_FILE = "heads.jsonl", "newest.json"


class KeptHeads:
    """The folder in which a member keeps heads: all in heads.jsonl, and the newest with its proofs in newest.json."""

    def __init__(self, folder: Path, key: PublicKey) -> None:
        self.folder, self.key = folder, key
        self.path = folder / KEPT_FILE

    def read(self) -> list[Head]:
        """Return the heads that were kept, oldest first."""
        return list(self._newest_first(read_jsonl(self.path)))[::-1]

    def _newest_first(self, lines: Sequence[Mapping[str, Any]]) -> Iterator[Head]:
        for number in range(len(lines), 0, -1):
            entry = parse_entry(lines[number - 1], f"{self.path} line {number}")
            if isinstance(entry, Head):
                yield entry

    def accept(self, document: Mapping[str, Any]) -> Head:
        """Check the head that the server sent against the last one that was kept, and keep it.

        Raise ForkError if it does not continue that one. The new head is then not kept.
        """
        proof = verify_proof(document, self.key, "the head from the server")
        lines = read_jsonl(self.path)
        last = next(self._newest_first(lines), None)
        if last is not None:
            proof.check_continues(last)
        if last is None or last.digest != proof.head.digest:
            for envelope in (*document["keys"], document["head"]):
                if envelope not in lines:
                    append_jsonl(self.path, envelope, private=True)
            write_proof(self.folder / NEWEST_FILE, document)
        return proof.head


def read_kept_heads(path: Path, key: PublicKey) -> list[Head]:
    """Return the heads in a member's heads.jsonl, or the head of a proof, that `key` vouches for."""
    document = _single_object(path)
    if document is not None and "celm_proof" in document:
        return [verify_proof(document, key, str(path)).head]
    lines = parse_jsonl(read_text(path).encode().rstrip(b"\n") + b"\n", path)
    entries = [parse_entry(line, f"{path} line {number}") for number, line in enumerate(lines, start=1)]
    events = [entry for entry in entries if isinstance(entry, KeyEvent)]
    vouched_key(events, key, str(path))
    known = [key, *(event.key for event in events)]
    heads = [entry for entry in entries if isinstance(entry, Head)]
    for head in heads:
        if not any(head.envelope.is_signed_by(one) for one in known):
            raise CelmError(f"{path}: the head of round {head.round} is not signed by a key of the record")
    if not heads:
        raise CelmError(f"{path} has no head")
    return heads


def compare_with_kept(proof: VerifiedProof, kept: Sequence[Head], source: str) -> list[Head]:
    """Return the heads among `kept`, which were read from `source`, that the proof's record continues.

    Raise ForkError if one of them contradicts it, and CelmError if none can be compared.
    """
    sizes = {proof.head.size, *proof.paths, *(head.size for head in proof.earlier_heads)}
    comparable = [head for head in kept if head.size in sizes or head.federation != proof.head.federation]
    for head in comparable:
        proof.check_continues(head)
    if not comparable:
        rounds = f"{kept[0].round} to {kept[-1].round}" if len(kept) > 1 else str(kept[0].round)
        raise CelmError(
            f"the proof is not about a head in {source}, which has those of rounds {rounds}",
            f"ask for a proof from one of them: celm audit-verify FOLDER --since {kept[-1].round}",
        )
    return comparable


def compare_heads(ours: Sequence[Head], theirs: Sequence[Head]) -> list[int]:
    """Return the rounds whose heads two members have both kept. Raise ForkError if two heads differ."""
    by_round = {head.round: head for head in ours}
    common = [head for head in theirs if head.round in by_round]
    for head in common:
        other = by_round[head.round]
        if (head.federation, head.size, head.root) != (other.federation, other.size, other.root):
            raise ForkError(
                f"FORK: two different heads of round {head.round} are signed",
                "keep both heads: together they prove that the server signed two histories",
            )
    if not common:
        raise CelmError("the two files have no round in common", "compare them after the next round")
    return [head.round for head in common]


def _single_object(path: Path) -> dict[str, Any] | None:
    """Return the JSON object that is all of a file; None if the file is not one object."""
    try:
        value = json.loads(read_text(path))
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None
