"""The signature of an audit's ledger: who stands behind a report, beyond a digest that a member has to keep."""

from __future__ import annotations

import base64
import hashlib
import json
from pathlib import Path

import pytest

pytest.importorskip("cryptography", reason="cryptography is not installed: pip install 'celm[sign]'")

from auditing.conftest import Uploads
from celm.records.signed.keys import SigningKey


@pytest.fixture
def signed(uploads: Uploads) -> Uploads:
    for name in ("key", "other"):
        SigningKey.make().write(uploads.folder / name)
    uploads.audit_json("--out", "audit", "--signing-key", "key")
    return uploads


def test_the_statement_names_the_files_of_the_audit(signed: Uploads) -> None:
    folder = signed.folder / "audit"
    payload = json.loads(base64.b64decode(json.loads((folder / "ledger.sig.json").read_text())["payload"]))
    names = ("ledger.json", "audit.json", "report.html")
    assert payload["subject"] == [
        {"name": name, "digest": {"sha256": hashlib.sha256((folder / name).read_bytes()).hexdigest()}}
        for name in names
    ]
    assert payload["predicateType"] == "https://celm/audit-ledger/v1"


def test_a_signed_ledger_verifies_with_the_public_key(signed: Uploads) -> None:
    for more in ((), ("--key", "key.pub")):
        done = signed.invoke("audit-verify", "audit", *more)
        assert done.exit_code == 0, done.output
        assert "the ledger is signed by" in done.stdout
    done = signed.invoke("audit-verify", "audit", "--key", "key.pub", "--format", "json")
    shown = json.loads(signed.invoke("keys", "show", "key", "--format", "json").stdout)
    assert json.loads(done.stdout)["signed_by"] == shown["key"]


def rewrite_ledger(folder: Path) -> None:
    ledger = json.loads((folder / "ledger.json").read_text())
    ledger["seed"] = 7
    (folder / "ledger.json").write_text(json.dumps(ledger))


@pytest.mark.parametrize(
    ("change", "key", "expected"),
    [
        (rewrite_ledger, "key.pub", "ledger.json has changed since it was signed"),
        (rewrite_ledger, None, "ledger.json has changed since it was signed"),
        (lambda folder: None, "other.pub", "has not signed the ledger"),
        (lambda folder: (folder / "ledger.sig.json").unlink(), "key.pub", "not signed"),
        (lambda folder: (folder / "ledger.sig.json").write_text("{}"), "key.pub", "damaged"),
    ],
    ids=["rewritten", "rewritten, without key", "other key", "removed", "damaged"],
)
def test_a_rewritten_ledger_or_another_key_does_not_verify(
    signed: Uploads, change: object, key: str | None, expected: str
) -> None:
    assert callable(change)
    change(signed.folder / "audit")
    done = signed.invoke("audit-verify", "audit", *(("--key", key) if key else ()))
    assert done.exit_code == 2
    assert expected in done.stderr
    assert "Traceback" not in done.stderr


def test_a_wrong_key_is_refused_before_the_audit(signed: Uploads) -> None:
    done = signed.audit("--out", "second", "--signing-key", "key.pub")
    assert done.exit_code == 2
    assert "not a private key" in done.stderr
    assert not (signed.folder / "second").exists()
    assert "--signing-key needs --out" in signed.audit("--signing-key", "key").stderr
