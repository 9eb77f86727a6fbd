"""Keys as PEM files: the private key for the server, the public key for members.

Keys are Ed25519, or ECDSA on the curve P-256, which `model-signing` reads too (`celm.records.signed.model_signature`).

A key's id is the SHA-256 of its public key (SubjectPublicKeyInfo, DER). This prints it, too:
`openssl pkey -pubin -in KEY -outform DER | sha256sum`.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Literal, TypeGuard

from celm.base.digests import bytes_sha256
from celm.base.errors import CelmError
from celm.base.files import os_errors_as_celm_error, write_text

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey, EllipticCurvePublicKey
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

    _PublicKey = Ed25519PublicKey | EllipticCurvePublicKey
    _PrivateKey = Ed25519PrivateKey | EllipticCurvePrivateKey

Algorithm = Literal["ed25519", "ecdsa"]
_MAX_PEM_BYTES = 10_000
_UNSUPPORTED_KEY = "is neither an Ed25519 key nor an ECDSA key on the curve P-256"


@dataclass(frozen=True)
class PublicKey:
    """A key that checks signatures, as PEM."""

    pem: str

    @classmethod
    def read(cls, path: Path) -> PublicKey:
        return cls.parse(_read_pem(path), str(path))

    @classmethod
    def parse(cls, pem: str, source: str) -> PublicKey:
        """Return the public key in `pem`, which was read from `source`. Raise CelmError if it is not supported."""
        from cryptography.exceptions import UnsupportedAlgorithm
        from cryptography.hazmat.primitives.serialization import load_pem_public_key

        try:
            key = load_pem_public_key(pem.encode())
        except (ValueError, UnsupportedAlgorithm) as error:
            hint = "give the public key, a file that begins with -----BEGIN PUBLIC KEY-----"
            raise CelmError(f"{source} is not a public key", hint) from error
        if not _is_supported(key):
            raise CelmError(f"{source} {_UNSUPPORTED_KEY}", "make one with: celm keys make PATH")
        return cls(_public_pem(key))

    @cached_property
    def _loaded(self) -> _PublicKey:
        from cryptography.hazmat.primitives.serialization import load_pem_public_key

        key = load_pem_public_key(self.pem.encode())
        assert _is_supported(key)
        return key

    @property
    def algorithm(self) -> Algorithm:
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

        return "ed25519" if isinstance(self._loaded, Ed25519PublicKey) else "ecdsa"

    @cached_property
    def id(self) -> str:
        from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

        return bytes_sha256(self._loaded.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo))

    def verifies(self, signature: bytes, content: bytes) -> bool:
        from cryptography.exceptions import InvalidSignature
        from cryptography.hazmat.primitives.asymmetric.ec import ECDSA
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
        from cryptography.hazmat.primitives.hashes import SHA256

        try:
            if isinstance(self._loaded, Ed25519PublicKey):
                self._loaded.verify(signature, content)
            else:
                self._loaded.verify(signature, content, ECDSA(SHA256()))
        except InvalidSignature:
            return False
        return True


@dataclass(frozen=True)
class SigningKey:
    """The private key of a consortium."""

    _key: _PrivateKey

    @classmethod
    def make(cls, algorithm: Algorithm = "ed25519") -> SigningKey:
        require_cryptography()
        from cryptography.hazmat.primitives.asymmetric.ec import SECP256R1, generate_private_key
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

        if algorithm == "ecdsa":
            return cls(generate_private_key(SECP256R1()))
        return cls(Ed25519PrivateKey.generate())

    @classmethod
    def read(cls, path: Path) -> SigningKey:
        """Read a private key that is not encrypted. Raise CelmError if it is not a supported key."""
        pem = _read_pem(path)
        from cryptography.exceptions import UnsupportedAlgorithm
        from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
        from cryptography.hazmat.primitives.serialization import load_pem_private_key

        try:
            key = load_pem_private_key(pem.encode(), password=None)
        except (ValueError, TypeError, UnsupportedAlgorithm) as error:
            hint = "give the private key as PEM without a password; make one with: celm keys make PATH"
            raise CelmError(f"{path} is not a private key", hint) from error
        if isinstance(key, Ed25519PrivateKey | EllipticCurvePrivateKey) and _is_supported(key.public_key()):
            return cls(key)
        raise CelmError(f"{path} {_UNSUPPORTED_KEY}", "make one with: celm keys make PATH")

    @cached_property
    def public(self) -> PublicKey:
        return PublicKey(_public_pem(self._key.public_key()))

    def sign(self, content: bytes) -> bytes:
        from cryptography.hazmat.primitives.asymmetric.ec import ECDSA
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
        from cryptography.hazmat.primitives.hashes import SHA256

        if isinstance(self._key, Ed25519PrivateKey):
            return self._key.sign(content)
        return self._key.sign(content, ECDSA(SHA256()))

    def write(self, path: Path) -> Path:
        """Write the private key, which only its owner may read, and beside it the public key; return its path."""
        from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

        public_path = path.with_name(f"{path.name}.pub")
        for existing in (path, public_path):
            if existing.exists():
                raise CelmError(f"{existing} exists", "a key is never overwritten: choose another path")
        pem = self._key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
        write_text(path, pem.decode(), private=True)
        write_text(public_path, self.public.pem)
        return public_path


def require_cryptography() -> None:
    """Raise CelmError if the package that makes and checks signatures is not installed."""
    from importlib.util import find_spec

    if find_spec("cryptography") is None:
        raise CelmError("signatures need the package cryptography", "pip install 'celm[sign]'")


def _read_pem(path: Path) -> str:
    require_cryptography()
    with os_errors_as_celm_error(path, "read"):
        size = path.stat().st_size
        content = path.read_bytes() if size <= _MAX_PEM_BYTES else b""
    try:
        return content.decode("ascii")
    except UnicodeDecodeError as error:
        raise CelmError(
            f"{path} is not a key", "give a PEM file, as `celm keys make PATH` writes it"
        ) from error


def _is_supported(key: object) -> TypeGuard[_PublicKey]:
    from cryptography.hazmat.primitives.asymmetric.ec import SECP256R1, EllipticCurvePublicKey
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

    if isinstance(key, EllipticCurvePublicKey):
        return isinstance(key.curve, SECP256R1)
    return isinstance(key, Ed25519PublicKey)


def _public_pem(key: _PublicKey) -> str:
    from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

    return key.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo).decode()
