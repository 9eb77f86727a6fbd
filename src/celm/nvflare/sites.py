"""The sites of a job: which are connected, and what identifies each.

NVFlare authenticates a site: the common name of its certificate is the site's name. In the simulator there are no
certificates, and the name identifies a site. Else the public key of its certificate does, under this name. A site
whose certificate cannot be read is not asked in this round.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
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
    """The public key of its certificate; empty without one."""


@dataclass
class SiteIdentities:
    """Reads the keys of sites from the certificates that NVFlare's cells exchange, once for each site."""

    engine: Any
    use_certificates: bool
    keys: dict[str, bytes] = field(default_factory=dict)
    """Site to its public key."""

    def sites(self, clients: Iterable[Client]) -> list[Site]:
        """Return the sites of these clients, without those whose certificate cannot be read."""
        found = []
        for client in clients:
            try:
                if client.name not in self.keys:
                    self.keys[client.name] = self._read_key(client)
            except Exception as error:  # bytes of a site, and any error of the connection to it
                log(
                    WARNING,
                    "%s is not asked: its certificate cannot be read (%s: %s)",
                    client.name,
                    type(error).__name__,
                    str(error)[:100],
                )
                continue
            found.append(Site(client.name, client.name, self.keys[client.name]))
        return found

    def _read_key(self, client: Client) -> bytes:
        """Return the public key of a site; empty if connections have no certificates."""
        cell = getattr(self.engine.get_cell(), "core_cell", None)
        if not self.use_certificates or cell is None or cell.credential_manager.cell_cipher is None:
            return b""
        return certified_key(cell.cert_ex.get_certificate(client.get_fqcn()), client.name)


def certified_key(pem: bytes, name: str) -> bytes:
    """Return the public key of the first certificate; raise ValueError if its common name is not `name`."""
    certificate = x509.load_pem_x509_certificates(pem)[0]
    names = [attribute.value for attribute in certificate.subject.get_attributes_for_oid(NameOID.COMMON_NAME)]
    if names != [name]:
        raise ValueError("its common name is not that of the site")
    return certificate.public_key().public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
