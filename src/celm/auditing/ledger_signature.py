"""A signature of an audit's ledger: ledger.sig.json, a DSSE envelope around an in-toto statement.

The subjects are ledger.json and the files that it made, with their SHA-256. The predicate type is
https://celm/audit-ledger/v1; the predicate has the version of celm, the public key and the time.
"""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

from celm import __version__
from celm.auditing.checkpoint_reader import file_sha256
from celm.auditing.ledger import LEDGER_FILE, read_ledger
from celm.base.errors import CelmError
from celm.base.files import dump_json, write_text
from celm.base.json_files import read_json
from celm.records.signed.envelope import Envelope, sign_statement
from celm.records.signed.keys import PublicKey, SigningKey

SIGNATURE_FILE = "ledger.sig.json"
LEDGER_TYPE = "https://celm/audit-ledger/v1"


def sign_ledger(folder: Path, key: SigningKey) -> None:
    """Sign the ledger of the finished audit in `folder`."""
    subjects = {LEDGER_FILE: file_sha256(folder / LEDGER_FILE), **read_ledger(folder)["made"]}
    predicate = {
        "celm": __version__,
        "key": key.public.pem,
        "time": datetime.now(UTC).isoformat(timespec="seconds"),
    }
    envelope = sign_statement(subjects, LEDGER_TYPE, predicate, [key])
    write_text(folder / SIGNATURE_FILE, dump_json(envelope.to_json(), indent=2) + "\n")


def verify_ledger_signature(folder: Path, key: Path | None) -> tuple[str | None, list[str]]:
    """Return the id of the key that signed the ledger, None if it is not signed, and the problems.

    Without `key`, the file of a public key, the signature is checked with the key that it names itself: this finds
    damage, and does not show who signed.
    """
    path = folder / SIGNATURE_FILE
    given = None if key is None else PublicKey.read(key)
    if not path.exists():
        return None, [] if given is None else [f"the ledger is not signed: there is no {SIGNATURE_FILE}"]
    envelope = Envelope.parse(read_json(path), str(path))
    pem = envelope.predicate.get("key")
    if envelope.predicate_type != LEDGER_TYPE or not isinstance(pem, str):
        raise CelmError(f"{path} is damaged: it is not a signature of a ledger")
    signer = given or PublicKey.parse(pem, f"{path}: its key")
    if not envelope.is_signed_by(signer):
        return None, [f"{SIGNATURE_FILE}: the key {signer.id[:16]} has not signed the ledger"]
    try:
        subjects = {subject["name"]: subject["digest"]["sha256"] for subject in envelope.statement["subject"]}
    except (KeyError, TypeError) as error:
        raise CelmError(f"{path} is damaged: its statement names no files") from error
    if subjects.get(LEDGER_FILE) != file_sha256(folder / LEDGER_FILE):
        return None, [f"{LEDGER_FILE} has changed since it was signed"]
    return signer.id, []
