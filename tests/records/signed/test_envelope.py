"""Keys and envelopes, checked by openssl and by the published vector of DSSE."""

from __future__ import annotations

import base64
import hashlib
import json
import shutil
import stat
import subprocess
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("cryptography", reason="cryptography is not installed: pip install 'celm[sign]'")

from celm.base.errors import CelmError
from celm.records.signed.envelope import PAYLOAD_TYPE, Envelope, sign_statement
from celm.records.signed.keys import PublicKey, SigningKey

needs_openssl = pytest.mark.skipif(shutil.which("openssl") is None, reason="openssl is not installed")


def openssl(*arguments: object) -> bytes:
    return subprocess.run(["openssl", *map(str, arguments)], capture_output=True, check=True).stdout


@needs_openssl
def test_openssl_verifies_a_signature_of_the_bytes_that_dsse_names(tmp_path: Path) -> None:
    key = SigningKey.make()
    public = key.write(tmp_path / "key")
    envelope = sign_statement({"a": "ab" * 32}, "https://example.org/type", {"n": 1}, [key]).to_json()
    payload = base64.b64decode(envelope["payload"])
    # The protocol of DSSE 1.0.2, written down here: "DSSEv1" SP LEN(type) SP type SP LEN(body) SP body
    signed = f"DSSEv1 {len(PAYLOAD_TYPE)} {PAYLOAD_TYPE} {len(payload)} ".encode() + payload
    (tmp_path / "signed").write_bytes(signed)
    (tmp_path / "signature").write_bytes(base64.b64decode(envelope["signatures"][0]["sig"]))
    arguments = ("pkeyutl", "-verify", "-pubin", "-inkey", public, "-rawin", "-in", tmp_path / "signed")
    assert b"Verified Successfully" in openssl(*arguments, "-sigfile", tmp_path / "signature")
    der = openssl("pkey", "-pubin", "-in", public, "-outform", "DER")
    assert envelope["signatures"][0]["keyid"] == hashlib.sha256(der).hexdigest()


@needs_openssl
def test_a_key_that_openssl_made_signs(tmp_path: Path) -> None:
    openssl("genpkey", "-algorithm", "ed25519", "-out", tmp_path / "key")
    openssl("pkey", "-in", tmp_path / "key", "-pubout", "-out", tmp_path / "key.pub")
    envelope = sign_statement({}, "type", {}, [SigningKey.read(tmp_path / "key")])
    assert envelope.is_signed_by(PublicKey.read(tmp_path / "key.pub"))


def test_the_payload_is_an_in_toto_statement(tmp_path: Path) -> None:
    envelope = sign_statement({"file": "cd" * 32}, "https://example.org/type", {"n": 1}, [SigningKey.make()])
    assert json.loads(base64.b64decode(envelope.to_json()["payload"])) == {
        "_type": "https://in-toto.io/Statement/v1",
        "subject": [{"name": "file", "digest": {"sha256": "cd" * 32}}],
        "predicateType": "https://example.org/type",
        "predicate": {"n": 1},
    }


def test_a_changed_payload_or_signature_or_another_key_does_not_verify() -> None:
    key, other = SigningKey.make(), SigningKey.make()
    envelope = sign_statement({}, "type", {"n": 1}, [key])
    assert Envelope.parse(envelope.to_json(), "x").is_signed_by(key.public)
    assert not envelope.is_signed_by(other.public)
    changed = Envelope(envelope.payload.replace(b"1", b"2"), envelope.signatures)
    assert not changed.is_signed_by(key.public)
    (key_id, signature) = envelope.signatures[0]
    assert not Envelope(envelope.payload, ((key_id, signature[::-1]),)).is_signed_by(key.public)
    assert not Envelope(envelope.payload, ((key_id, b""),)).is_signed_by(key.public)
    assert not Envelope(envelope.payload, ()).is_signed_by(key.public)


def damaged_envelopes() -> list[Any]:
    good = sign_statement({}, "type", {}, [SigningKey.make()]).to_json()
    return [
        None,
        [],
        {},
        good | {"payload": "%"},
        good | {"payload": 7},
        good | {"payloadType": "text/plain"},
        good | {"signatures": [{}]},
        good | {"signatures": 3},
        good | {"payload": base64.b64encode(b"[]").decode()},
        good | {"payload": base64.b64encode(b"[" * 100_000).decode()},
        good | {"payload": base64.b64encode(b'{"_type": "https://in-toto.io/Statement/v1"}').decode()},
    ]


@pytest.mark.parametrize("value", damaged_envelopes(), ids=range(11))
def test_a_damaged_envelope_is_an_error(value: Any) -> None:
    with pytest.raises(CelmError, match=r"^the file is damaged"):
        Envelope.parse(value, "the file")


def test_only_the_owner_may_read_a_private_key_and_none_is_overwritten(tmp_path: Path) -> None:
    SigningKey.make().write(tmp_path / "key")
    assert stat.S_IMODE((tmp_path / "key").stat().st_mode) == 0o600
    with pytest.raises(CelmError, match="exists"):
        SigningKey.make().write(tmp_path / "key")
    (tmp_path / "key").unlink()
    with pytest.raises(CelmError, match="exists"):
        SigningKey.make().write(tmp_path / "key")


EC_KEY = ("genpkey", "-algorithm", "EC", "-pkeyopt", "ec_paramgen_curve:P-384")


@needs_openssl
def test_other_files_than_keys_of_a_supported_kind_are_refused(tmp_path: Path) -> None:
    SigningKey.make().write(tmp_path / "key")
    openssl(*EC_KEY, "-out", tmp_path / "ec")
    openssl("pkey", "-in", tmp_path / "ec", "-pubout", "-out", tmp_path / "ec.pub")
    encrypt = ("-aes256", "-passout", "pass:word", "-out")
    openssl("pkey", "-in", tmp_path / "key", *encrypt, tmp_path / "encrypted")
    (tmp_path / "bytes").write_bytes(b"\xff" * 100)
    (tmp_path / "long").write_bytes(b"-" * 20_000)
    for name in ("key.pub", "ec", "encrypted", "bytes", "long", "missing"):
        with pytest.raises(CelmError, match=name):
            SigningKey.read(tmp_path / name)
    for name in ("key", "ec.pub", "bytes", "long", "missing"):
        with pytest.raises(CelmError, match=name):
            PublicKey.read(tmp_path / name)
