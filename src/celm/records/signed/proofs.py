"""Proofs that a member checks with the public key alone, as JSON.

    celm_proof      1
    keys            the key events of the record (celm.records.signed.heads)
    head            the newest signed head
    leaves          two leaves of the record as text, with `index` and `path`: that of a round and that of one client
    consistency     `size` of an earlier head and `path`: the record of that head is the beginning of this one; with
                    `head`, the earlier head itself

The server sends the same document, without leaves, with each round (`celm.records.signed.head_log`).
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from celm.base.errors import CelmError
from celm.base.files import dump_json, write_text
from celm.base.json_files import read_json
from celm.records.merkle import hash_leaf, verify_consistency, verify_inclusion
from celm.records.signed.heads import Head, parse_head, parse_key_event
from celm.records.signed.keys import PublicKey
from celm.records.signed.trust import check_signature, vouched_key


class ForkError(CelmError):
    """The server's heads contradict each other: history was rewritten, or members were told different things."""


@dataclass(frozen=True)
class VerifiedProof:
    """A proof whose signatures and paths are right."""

    head: Head
    key: PublicKey
    """The key that signed the head."""
    leaves: Sequence[dict[str, Any]] = ()
    earlier_heads: Sequence[Head] = ()
    paths: Mapping[int, Sequence[bytes]] = field(default_factory=dict)
    """Size of an earlier tree to the proof that it is the beginning of this one."""

    def check_continues(self, kept: Head) -> None:
        """Raise ForkError unless this head continues the record of which `kept` is an earlier head."""
        head = self.head
        if kept.federation != head.federation:
            raise ForkError(
                f"the head of round {head.round} is of another record than the kept head of round {kept.round}",
                "if the consortium has agreed to begin again, keep the heads of the new record elsewhere",
            )
        hint = "keep both heads: together they prove that the server signed two histories"
        if kept.size == head.size:
            if kept.root != head.root:
                raise ForkError(f"FORK: two different heads of round {head.round} are signed", hint)
            return
        if kept.size > head.size:
            raise ForkError(
                f"FORK: the record has {head.round} rounds, and the head that was kept is of round {kept.round}",
                hint,
            )
        if kept.size not in self.paths:
            raise ForkError(
                f"nothing proves that the head of round {head.round} continues that of round {kept.round}",
                f"ask for a proof from it: celm audit-verify FOLDER --since {kept.round}",
            )
        if not verify_consistency(kept.size, kept.root, head.size, head.root, self.paths[kept.size]):
            raise ForkError(
                f"FORK: the head of round {head.round} does not continue that of round {kept.round}: "
                f"what was recorded up to round {kept.round} was changed",
                hint,
            )


def verify_proof(document: Mapping[str, Any], key: PublicKey, source: str) -> VerifiedProof:
    """Check a proof, which was read from `source`, with the consortium's public key.

    Raise CelmError if a signature or a path does not match.
    """
    try:
        if document.get("celm_proof") != 1:
            raise CelmError(
                f"{source} is not a proof", "make one: celm audit-verify FOLDER --proof CLIENT ROUND"
            )
        events = [parse_key_event(value, f"{source}: keys") for value in document["keys"]]
        head = parse_head(document["head"], f"{source}: head")
        signer = vouched_key(events, key, source)
        check_signature(head, signer, source)
        if any(event.federation != head.federation for event in events):
            raise CelmError(f"{source} was changed: its keys and its head are of different records")
        steps = [
            (step["size"], _parse_path(step["path"]), step.get("head"))
            for step in document.get("consistency", ())
        ]
        if not all(isinstance(size, int) for size, _, _ in steps):
            raise TypeError
        placed = [_verify_leaf(leaf, head, source) for leaf in document.get("leaves", ())]
        _check_place(placed, source)
        leaves = [leaf for _, leaf in placed]
    except (KeyError, TypeError, ValueError, AttributeError, RecursionError) as error:
        raise CelmError(f"{source} is damaged: it lacks a part of a proof or has a wrong one") from error
    proof = VerifiedProof(head, signer, leaves, (), {size: path for size, path, _ in steps})
    earlier = [parse_head(value, f"{source}: consistency") for _, _, value in steps if value is not None]
    for old in earlier:
        if not any(old.envelope.is_signed_by(known) for known in [key, *(event.key for event in events)]):
            raise CelmError(
                f"{source}: the earlier head of round {old.round} is not signed by a key of the record"
            )
        proof.check_continues(old)
    return VerifiedProof(head, signer, leaves, earlier, proof.paths)


def _verify_leaf(value: Mapping[str, Any], head: Head, source: str) -> tuple[int, dict[str, Any]]:
    """Return the index and the content of a leaf that is in the tree of `head`."""
    data, index = value["data"], value["index"]
    if not isinstance(data, str) or not isinstance(index, int):
        raise TypeError
    if not verify_inclusion(
        hash_leaf(data.encode()), index, head.size, _parse_path(value["path"]), head.root
    ):
        raise CelmError(f"{source}: a leaf is not in the record of the head of round {head.round}")
    content = json.loads(data)
    if not isinstance(content, dict):
        raise TypeError
    return index, content


def _check_place(leaves: Sequence[tuple[int, dict[str, Any]]], source: str) -> None:
    """Raise CelmError unless the leaf of a client follows the leaf of its round, among those of the round's clients."""
    if not leaves:
        return
    (round_index, of_round), (index, of_client) = leaves
    kinds = (of_round["leaf"], of_client["leaf"])
    offset = index - round_index
    if kinds != ("round", "client") or of_round["round"] != of_client["round"]:
        raise CelmError(f"{source} was changed: its leaves are not those of one client in one round")
    if not 1 <= offset <= of_round["clients"]:
        raise CelmError(f"{source} was changed: the leaf of the client is not among those of its round")


def _parse_path(value: Sequence[str]) -> list[bytes]:
    return [bytes.fromhex(node) for node in value]


def read_proof(path: Path) -> dict[str, Any]:
    return read_json(path)


def write_proof(path: Path, document: Mapping[str, Any]) -> None:
    write_text(path, dump_json(document, indent=2) + "\n")
