"""DSSE envelopes (github.com/secure-systems-lab/dsse, version 1.0.2) around in-toto statements (v1).

    {"payload": base64 of the statement, "payloadType": "application/vnd.in-toto+json",
     "signatures": [{"keyid": "...", "sig": base64}]}

A signature is over the bytes of the payload and its type, so no canonical JSON is needed.
"""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from celm.base.digests import bytes_sha256
from celm.base.errors import CelmError
from celm.base.files import dump_json
from celm.records.signed.keys import PublicKey, SigningKey

PAYLOAD_TYPE = "application/vnd.in-toto+json"
_STATEMENT_TYPE = "https://in-toto.io/Statement/v1"


@dataclass(frozen=True)
class Envelope:
    """A signed statement. Nothing is known of its signatures until `is_signed_by`."""

    payload: bytes
    signatures: tuple[tuple[str, bytes], ...]
    """Id of the key, and the signature."""

    @classmethod
    def parse(cls, value: object, source: str) -> Envelope:
        """Return the envelope in JSON `value`, which was read from `source`."""
        try:
            if not isinstance(value, Mapping) or value["payloadType"] != PAYLOAD_TYPE:
                raise TypeError
            payload = base64.b64decode(value["payload"], validate=True)
            signatures = tuple(
                (str(signature["keyid"]), base64.b64decode(signature["sig"], validate=True))
                for signature in value["signatures"]
            )
            statement = json.loads(payload)
            if statement["_type"] != _STATEMENT_TYPE or not isinstance(statement["predicate"], dict):
                raise TypeError
        except (KeyError, TypeError, ValueError, binascii.Error, RecursionError) as error:
            raise CelmError(f"{source} is damaged: not a signed statement (DSSE, in-toto)") from error
        return cls(payload, signatures)

    def to_json(self) -> dict[str, Any]:
        return {
            "payload": base64.b64encode(self.payload).decode(),
            "payloadType": PAYLOAD_TYPE,
            "signatures": [
                {"keyid": key_id, "sig": base64.b64encode(signature).decode()}
                for key_id, signature in self.signatures
            ],
        }

    @cached_property
    def statement(self) -> dict[str, Any]:
        statement: dict[str, Any] = json.loads(self.payload)
        return statement

    @property
    def predicate_type(self) -> object:
        return self.statement.get("predicateType")

    @property
    def predicate(self) -> dict[str, Any]:
        predicate: dict[str, Any] = self.statement["predicate"]
        return predicate

    @property
    def digest(self) -> str:
        """The SHA-256 of the payload: it names the statement, whoever signed it."""
        return bytes_sha256(self.payload)

    def is_signed_by(self, key: PublicKey) -> bool:
        content = pre_authentication_encoding(PAYLOAD_TYPE, self.payload)
        return any(
            key_id == key.id and key.verifies(signature, content) for key_id, signature in self.signatures
        )


def pre_authentication_encoding(payload_type: str, payload: bytes) -> bytes:
    """Return the bytes that are signed.

    >>> pre_authentication_encoding("http://example.com/HelloWorld", b"hello world")
    b'DSSEv1 29 http://example.com/HelloWorld 11 hello world'
    """
    encoded_type = payload_type.encode()
    return b"DSSEv1 %d %b %d %b" % (len(encoded_type), encoded_type, len(payload), payload)


def sign_statement(
    subjects: Mapping[str, str], predicate_type: str, predicate: Mapping[str, Any], keys: Sequence[SigningKey]
) -> Envelope:
    """Return a statement about `subjects` (name to SHA-256), signed with all `keys`."""
    statement = {
        "_type": _STATEMENT_TYPE,
        "subject": [{"name": name, "digest": {"sha256": digest}} for name, digest in subjects.items()],
        "predicateType": predicate_type,
        "predicate": dict(predicate),
    }
    payload = dump_json(statement).encode()
    content = pre_authentication_encoding(PAYLOAD_TYPE, payload)
    return Envelope(payload, tuple((key.public.id, key.sign(content)) for key in keys))
