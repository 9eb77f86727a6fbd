"""Certificates of sites: which key identifies a site, and that a wrong certificate costs the site its round only."""

from __future__ import annotations

import hashlib
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace

import pytest

pytest.importorskip("nvflare", reason="NVFlare is not installed: pip install 'celm[nvflare]'")

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from cryptography.x509.oid import NameOID
from nvflare.apis.client import Client

from celm.live.state_store import StateStore
from celm.nvflare.sites import SiteIdentities, certified_key


def certificate(name: str, key: ec.EllipticCurvePrivateKey) -> bytes:
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    now = datetime.now(UTC)
    builder = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(subject)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(now)
        .not_valid_after(now + timedelta(days=1))
    )
    return builder.sign(key, hashes.SHA256()).public_bytes(Encoding.PEM)


def public_bytes(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.public_key().public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)


class Cell:
    """The parts of NVFlare's cell that are asked for certificates; it has those of `certificates`."""

    def __init__(self, certificates: dict[str, bytes], secure: bool = True) -> None:
        self.core_cell = SimpleNamespace(
            credential_manager=SimpleNamespace(cell_cipher=object() if secure else None),
            cert_ex=SimpleNamespace(get_certificate=certificates.__getitem__),
        )


def identities(cell: Cell, use_certificates: bool = True) -> SiteIdentities:
    return SiteIdentities(SimpleNamespace(get_cell=lambda: cell), use_certificates)


def clients(*names: str) -> list[Client]:
    return [Client(name, "token") for name in names]


def test_the_key_of_a_certificate_identifies_a_site_under_its_name() -> None:
    key = ec.generate_private_key(ec.SECP256R1())
    sites = identities(Cell({"north": certificate("north", key)})).sites(clients("north"))
    store = StateStore(None)
    assert store.identify(sites) == {"north": "north"}
    fingerprint = hashlib.sha256(public_bytes(key)).hexdigest()[:16]
    assert store.client_keys(["north"]) == {"north": f"key-{fingerprint}"}


def test_a_site_without_a_readable_certificate_is_not_asked() -> None:
    key = ec.generate_private_key(ec.SECP256R1())
    cell = Cell({"north": certificate("north", key), "east": certificate("north", key), "west": b"junk"})
    sites = identities(cell).sites(clients("north", "east", "west", "gone"))
    assert [site.name for site in sites] == ["north"]
    with pytest.raises(ValueError, match="common name"):
        certified_key(certificate("north", key), "east")


@pytest.mark.parametrize(("secure", "use_certificates"), [(False, True), (True, False)])
def test_without_certificates_the_name_identifies_a_site(secure: bool, use_certificates: bool) -> None:
    store = StateStore(None)
    found = identities(Cell({}, secure), use_certificates).sites(clients("north", "south"))
    assert store.identify(found) == {"north": "north", "south": "south"}
    assert store.identify(found[1:]) == {"south": "south"}
