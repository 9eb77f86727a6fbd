"""The signature of an exported model, as the package `model-signing` (OpenSSF) verifies it.

    model_signing verify key FOLDER --signature FOLDER/model.sig --public_key KEY.pub

It is a Sigstore bundle: a DSSE envelope around an in-toto statement with the SHA-256 of each file. Its key is ECDSA.
"""

from __future__ import annotations

import hashlib
from pathlib import Path

from celm.base.digests import bytes_sha256
from celm.base.errors import CelmError
from celm.base.files import dump_json, os_errors_as_celm_error, write_text
from celm.records.signed.envelope import sign_statement
from celm.records.signed.keys import SigningKey

SIGNATURE_FILE = "model.sig"
_BUNDLE_TYPE = "application/vnd.dev.sigstore.bundle.v0.3+json"
_PREDICATE_TYPE = "https://model_signing/signature/v1.0"


def read_model_key(path: Path) -> SigningKey:
    """Read a key that signs models. Raise CelmError unless it is ECDSA: `model-signing` reads no Ed25519 keys."""
    key = SigningKey.read(path)
    if key.public.algorithm != "ecdsa":
        raise CelmError(
            f"{path} is an Ed25519 key, which model-signing does not read",
            "make another one with: celm keys make PATH --algorithm ecdsa",
        )
    return key


def make_model_folder(model: Path) -> None:
    """Make the folder of a model. Raise CelmError if it has other files: `model-signing` verifies whole folders."""
    with os_errors_as_celm_error(model.parent, "read"):
        model.parent.mkdir(parents=True, exist_ok=True)
        names = sorted(path.name for path in model.parent.iterdir())
    for name in names:
        if name not in (model.name, SIGNATURE_FILE):
            raise CelmError(
                f"cannot sign {model}: its folder has other files, such as {name}",
                "write it into a folder of its own: --out FOLDER/model.safetensors",
            )


def sign_model(model: Path, key: SigningKey) -> Path:
    """Write the signature of a model beside it; return its path."""
    with os_errors_as_celm_error(model, "read"), model.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256")
    predicate = {
        "serialization": {
            "method": "files",
            "hash_type": "sha256",
            "allow_symlinks": False,
            "ignore_paths": [SIGNATURE_FILE],
        },
        "resources": [{"name": model.name, "algorithm": "sha256", "digest": digest.hexdigest()}],
    }
    # The subject is the folder; its digest is that of the digests of its files.
    subjects = {model.absolute().parent.name: bytes_sha256(digest.digest())}
    envelope = sign_statement(subjects, _PREDICATE_TYPE, predicate, [key])
    bundle = {
        "mediaType": _BUNDLE_TYPE,
        "verificationMaterial": {
            "publicKey": {"hint": bytes_sha256(key.public.pem.encode())},
            "tlogEntries": [],
        },
        "dsseEnvelope": envelope.to_json(),
    }
    path = model.with_name(SIGNATURE_FILE)
    write_text(path, dump_json(bundle) + "\n")
    return path
