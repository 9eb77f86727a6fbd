"""Which heads a member's key vouches for.

A key vouches for itself, and for a key to which it was rotated. A revoked key vouches for nothing. A head counts if the
key that holds after all key events has signed it, and the member's key vouches for that key.
"""

from __future__ import annotations

from collections.abc import Sequence

from celm.base.errors import CelmError
from celm.records.hash_chain import GENESIS
from celm.records.signed.heads import ADOPTED, ROTATED, Entry, Head, KeyEvent
from celm.records.signed.keys import PublicKey

_REVOKED_HINT = "get the new public key from the consortium by another way, such as in person"


def vouched_key(events: Sequence[KeyEvent], key: PublicKey, source: str) -> PublicKey:
    """Return the key that holds after `events`, which were read from `source`, if `key` vouches for it.

    Raise CelmError if the events are damaged, if `key` was revoked, or if it does not lead to the last key.
    """
    if not events:
        return key
    vouched, revoked = {key.id}, ""
    for event, before in zip(events, [None, *events], strict=False):
        old_key = None if before is None else before.key
        if (event.replaces, event.event == ADOPTED) != (old_key and old_key.id, old_key is None):
            raise CelmError(f"{source} is damaged: a key does not follow the key before")
        signers = [event.key, *([old_key] if old_key and event.event == ROTATED else [])]
        if not all(event.envelope.is_signed_by(signer) for signer in signers):
            raise CelmError(f"{source} was changed: the signature of a key does not match")
        if event.replaces in vouched:
            if event.event == ROTATED:
                vouched.add(event.key.id)
            else:
                revoked = event.replaces
    last = events[-1].key
    if last.id in vouched:
        return last
    if revoked:
        raise CelmError(f"{source}: the key {revoked[:16]} was revoked", _REVOKED_HINT)
    raise CelmError(
        f"{source} is signed by the key {last.id[:16]}, for which the given key {key.id[:16]} does not vouch",
        "compare the ids of the keys with the consortium: celm keys show KEY",
    )


def check_signature(head: Head, key: PublicKey, source: str) -> None:
    """Raise CelmError unless `key` has signed the head, which was read from `source`."""
    if not head.envelope.is_signed_by(key):
        raise CelmError(
            f"{source}: the head of round {head.round} is not signed by the key {key.id[:16]}",
            "it was changed, or another key has signed it",
        )


def check_entries(entries: Sequence[Entry], source: str) -> None:
    """Check chain and signatures of heads.jsonl against the keys that it has itself.

    This finds damage. Whose keys these are is known only to a member that compares them with its own (`vouched_key`).
    """
    events = [entry for entry in entries if isinstance(entry, KeyEvent)]
    if entries and not isinstance(entries[0], KeyEvent):
        raise CelmError(f"{source} is damaged: its first line is not a key")
    if events:
        vouched_key(events, events[-1].key, source)
    previous, key, last = GENESIS, None, None
    for number, entry in enumerate(entries, start=1):
        if entry.previous != previous or entry.federation != entries[0].federation:
            raise CelmError(
                f"{source} was changed at line {number}: a head was edited, removed, added or moved"
            )
        previous = entry.digest
        if isinstance(entry, KeyEvent):
            key = entry.key
            continue
        if key is not None:
            check_signature(entry, key, f"{source} line {number}")
        if last is not None and (entry.round < last.round or entry.size < last.size):
            raise CelmError(f"{source} was changed at line {number}: the record became shorter")
        last = entry
