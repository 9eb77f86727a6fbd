"""The sites of a job: which are connected, and what identifies each.

NVFlare authenticates a site: the common name of its certificate is the site's name. The name is therefore the
identity. With TLS, the record also has the fingerprint of the certificate's key, so that a new key shows.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from logging import WARNING
from typing import Any

from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from cryptography.x509.oid import NameOID
from nvflare.apis.client import Client

from celm.live.logger import log


@dataclass(frozen=True)
class Site:
    """A site as `celm.live.node_names` names it."""

    node_id: str
    """The site's name, by which NVFlare sends tasks."""
    name: str
    public_key: bytes
    """The public key of its certificate; empty without TLS."""


def connected_sites(clients: Sequence[Client], read_key: Callable[[Client], bytes]) -> list[Site]:
    """Return the sites of these clients."""
    return [Site(client.name, client.name, read_key(client)) for client in clients]


@dataclass
class CertificateKeys:
    """Reads the keys of sites from the certificates that NVFlare's cells exchange, once for each site."""

    engine: Any
    known: dict[str, bytes]

    def read(self, client: Client) -> bytes:
        """Return the public key of a site; empty if the connection has no certificates, as in the simulator."""
        if client.name not in self.known:
            self.known[client.name] = self._read_key(client)
        return self.known[client.name]

    def _read_key(self, client: Client) -> bytes:
        cell = getattr(self.engine.get_cell(), "core_cell", None)
        if cell is None or cell.credential_manager.cell_cipher is None:
            return b""
        try:
            certificate = x509.load_pem_x509_certificates(cell.cert_ex.get_certificate(client.get_fqcn()))[0]
            names = [name.value for name in certificate.subject.get_attributes_for_oid(NameOID.COMMON_NAME)]
            if names != [client.name]:
                raise ValueError("its common name is not the site's")
            return certificate.public_key().public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
        except Exception as error:  # bytes of a site, and a library's internals: the name still identifies it
            log(WARNING, "%s: its certificate cannot be read (%s)", client.name, type(error).__name__)
            return b""
