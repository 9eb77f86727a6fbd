"""Signatures of exported models: checked by openssl, and by model-signing where it is installed."""

from __future__ import annotations

import base64
import hashlib
import json
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

pytest.importorskip("cryptography", reason="cryptography is not installed: pip install 'celm[sign]'")

from typer.testing import Result

import celm
from celm.records.signed.keys import PublicKey, SigningKey
from celm.records.signed.model_signature import make_model_folder, read_model_key, sign_model

Invoke = Callable[..., Result]


def verify_with_openssl(public_key: Path, bundle: dict[str, object], folder: Path) -> bool:
    """Check the first signature of a bundle over the bytes that DSSE 1.0.2 names."""
    envelope = bundle["dsseEnvelope"]
    assert isinstance(envelope, dict)
    payload, kind = base64.b64decode(envelope["payload"]), envelope["payloadType"]
    (folder / "signed").write_bytes(f"DSSEv1 {len(kind)} {kind} {len(payload)} ".encode() + payload)
    (folder / "signature").write_bytes(base64.b64decode(envelope["signatures"][0]["sig"]))
    arguments = ["-verify", public_key, "-signature", folder / "signature", folder / "signed"]
    done = subprocess.run(
        ["openssl", "dgst", "-sha256", *map(str, arguments)], capture_output=True, text=True
    )
    return done.stdout.strip() == "Verified OK"


@pytest.mark.skipif(shutil.which("openssl") is None, reason="openssl is not installed")
def test_the_bundle_has_the_digest_of_the_model_and_a_signature_that_openssl_verifies(tmp_path: Path) -> None:
    public_key = SigningKey.make("ecdsa").write(tmp_path / "key")
    model = tmp_path / "global" / "model.safetensors"
    make_model_folder(model)
    model.write_bytes(b"weights")
    bundle = json.loads(sign_model(model, read_model_key(tmp_path / "key")).read_text())
    assert verify_with_openssl(public_key, bundle, tmp_path)
    assert (
        bundle["verificationMaterial"]["publicKey"]["hint"]
        == hashlib.sha256(public_key.read_bytes()).hexdigest()
    )
    statement = json.loads(base64.b64decode(bundle["dsseEnvelope"]["payload"]))
    digest = hashlib.sha256(b"weights")
    assert statement["subject"] == [
        {"name": "global", "digest": {"sha256": hashlib.sha256(digest.digest()).hexdigest()}}
    ]
    assert statement["predicate"]["resources"] == [
        {"name": "model.safetensors", "algorithm": "sha256", "digest": digest.hexdigest()}
    ]


def test_model_signing_verifies_an_exported_model_and_refuses_a_changed_one(
    invoke: Invoke, tmp_path: Path
) -> None:
    verifying = pytest.importorskip(
        "model_signing.verifying",
        reason="not installed: pip install model-signing pyopenssl",
        exc_type=ImportError,
    )
    public_key = SigningKey.make("ecdsa").write(tmp_path / "key")
    celm.run(celm.Experiment(rule="fedavg", rounds=1), tmp_path / "run")
    model = tmp_path / "global" / "model.safetensors"
    done = invoke("export", tmp_path / "run", "--out", model, "--signing-key", tmp_path / "key")
    assert done.exit_code == 0, done.output
    config = verifying.Config().use_elliptic_key_verifier(public_key=public_key)
    config.verify(model.parent, model.with_name("model.sig"))
    with model.open("ab") as file:
        file.write(b"0")
    with pytest.raises(ValueError, match=r"model\.safetensors"):
        config.verify(model.parent, model.with_name("model.sig"))


def test_a_key_or_a_folder_that_model_signing_cannot_use_is_refused_before_a_model_is_written(
    invoke: Invoke, tmp_path: Path
) -> None:
    celm.run(celm.Experiment(rule="fedavg", rounds=1), tmp_path / "run")
    SigningKey.make().write(tmp_path / "ed25519")
    SigningKey.make("ecdsa").write(tmp_path / "ecdsa")
    for key, out, problem in (
        ("ed25519", tmp_path / "global" / "model.safetensors", "--algorithm ecdsa"),
        ("ecdsa", tmp_path / "model.safetensors", "other files"),
        ("nothing", tmp_path / "global" / "model.safetensors", "nothing"),
    ):
        done = invoke("export", tmp_path / "run", "--out", out, "--signing-key", tmp_path / key)
        assert done.exit_code == 2
        assert problem in done.output
        assert not out.exists()


@pytest.mark.parametrize("algorithm", ["ed25519", "ecdsa"])
def test_keys_of_both_algorithms_sign_and_are_read_again(tmp_path: Path, algorithm: str) -> None:
    key = SigningKey.make("ecdsa" if algorithm == "ecdsa" else "ed25519")
    public_path = key.write(tmp_path / "key")
    public, again = PublicKey.read(public_path), SigningKey.read(tmp_path / "key")
    assert public.algorithm == algorithm
    assert public.verifies(again.sign(b"head"), b"head")
    assert not public.verifies(again.sign(b"head"), b"another")
    assert not SigningKey.make("ecdsa").public.verifies(again.sign(b"head"), b"head")
