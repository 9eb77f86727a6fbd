"""The records in which the server sends the signed head of the record, and a client returns the head that it kept."""

from __future__ import annotations

import re

from flwr.app import ConfigRecord, RecordDict

HEAD_RECORD, WITNESS_RECORD = "celm-head", "celm-witness"
_PROOF_KEY, _DIGEST_KEY = "proof", "head"


def head_record(proof: str) -> dict[str, ConfigRecord]:
    """Return the record with a signed head; a client that does not know it ignores it."""
    return {HEAD_RECORD: ConfigRecord({_PROOF_KEY: proof})}


def received_head(content: RecordDict) -> str | None:
    """Return the signed head in a message as JSON; None if there is none."""
    record = content.config_records.get(HEAD_RECORD)
    proof = None if record is None else record.get(_PROOF_KEY)
    return proof if isinstance(proof, str) else None


def witness_record(digest: str) -> ConfigRecord:
    """Return the record with the digest of a head that a client kept."""
    return ConfigRecord({_DIGEST_KEY: digest})


def echoed_head(content: RecordDict) -> str | None:
    """Return the digest of the head that a client kept, from its reply; None if it returns none."""
    record = content.config_records.get(WITNESS_RECORD)
    digest = None if record is None else record.get(_DIGEST_KEY)
    return digest if isinstance(digest, str) and re.fullmatch("[0-9a-f]{64}", digest) else None
