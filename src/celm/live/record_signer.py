"""Sign the record of a live federation, and give each client the newest head.

A client that echoes the head that it kept is a witness: the next line of the record has the digest of that head. From
the echo the server also knows which consistency proofs the client needs.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from logging import INFO, WARNING
from pathlib import Path
from typing import Any

from celm.base.errors import CelmError
from celm.base.files import dump_json
from celm.live.federation_folder import FederationFolder
from celm.live.logger import log
from celm.records.hash_chain import ChainFile
from celm.records.signed.head_log import HEADS_FILE, HeadLog
from celm.records.signed.keys import SigningKey


class RecordSigner:
    """The signing key of a federation and, once `open` was called, its heads."""

    def __init__(self, key: SigningKey) -> None:
        self.key = key
        self._heads: HeadLog | None = None
        self._echoes: dict[str, str] = {}
        """Client to the digest of the head that it echoed last."""

    @classmethod
    def read(cls, path: str | Path, folder: FederationFolder | None) -> RecordSigner:
        """Return a signer with the private key at `path`. It needs a folder: a fork would follow a restart without."""
        if folder is None:
            raise CelmError("signing_key needs a state folder", "set folder=...")
        return cls(SigningKey.read(Path(path)))

    def open(self, folder: Path, rounds: ChainFile) -> None:
        """Read the heads in `folder`, and sign the last round if its head is missing."""
        self._heads = HeadLog.read(folder, rounds)
        self._echoes = {}
        for record in rounds.records:
            self._echoes |= record.get("witnesses", {})
        is_first = not self._heads.entries
        head = self._heads.sign(self.key)
        if is_first and head is not None:
            log(INFO, "the first signed head covers the %d rounds that were recorded before", head.round)

    def sign_round(self, record: Mapping[str, Any], digest: str) -> None:
        """Sign the head of the record with the line of a finished round. `digest` is the line's SHA-256."""
        if self._heads is not None:
            self._heads.append_round(record, digest)
            self._heads.sign(self.key)
            self._echoes |= record.get("witnesses", {})

    def known_echoes(self, echoes: Mapping[str, str]) -> dict[str, str]:
        """Return the echoes of heads that this record has; warn of others."""
        known = set() if self._heads is None else {head.digest for head in self._heads.heads}
        for client in echoes:
            if echoes[client] not in known:
                log(WARNING, "%s returns a signed head that this record does not have", client)
        return {client: digest for client, digest in echoes.items() if digest in known}

    def head_updates(self, clients: Iterable[str]) -> dict[str, str]:
        """Return for each client the newest head as JSON, with the proofs that the client needs.

        Nothing is returned before the first head.
        """
        if self._heads is None or self._heads.last_head is None:
            return {}
        texts: dict[str | None, str] = {}
        for client in clients:
            echo = self._echoes.get(client)
            if echo not in texts:
                texts[echo] = dump_json(self._heads.make_update(echo))
        return {client: texts[self._echoes.get(client)] for client in clients}


def check_signed_record(folder: Path, rounds: ChainFile, signer: RecordSigner | None) -> None:
    """Raise CelmError if the heads in `folder` are not those of its record, or if the key is not theirs."""
    if not (folder / HEADS_FILE).exists():
        return
    heads = HeadLog.read(folder, rounds)
    if signer is not None:
        heads.check_key(signer.key)
    elif heads.last_head is not None:
        log(
            WARNING,
            "the record was signed up to round %d: set signing_key to sign it further",
            heads.last_head.round,
        )
