"""Tamperings with a finished audit and with the record of a federation: which are found, with the digest and without.

The table of docs/trust.md has a row for each, and every row is checked here.
"""

from __future__ import annotations

import hashlib
import json
import re
import shutil
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import save_file
from typer.testing import Result

import celm
from auditing.conftest import SETTINGS, random_state

TESTS = Path(__file__).parents[1]
PAGE = TESTS.parent / "docs" / "trust.md"


def sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def edit(path: Path, change: Callable[[dict[str, Any]], object]) -> None:
    document = json.loads(path.read_text())
    change(document)
    path.write_text(json.dumps(document, indent=2) + "\n")


def edit_with_ledger(folder: Path, name: str, change: Callable[[dict[str, Any]], object]) -> None:
    """Change a file of the audit and put its new digest into the ledger."""
    edit(folder / "audit" / name, change)
    digest = sha256(folder / "audit" / name)
    edit(folder / "audit" / "ledger.json", lambda ledger: ledger["made"].update({name: digest}))


def in_ledger(change: Callable[[dict[str, Any]], object]) -> Callable[[Path], None]:
    return lambda folder: edit(folder / "audit" / "ledger.json", change)


def replace_input(folder: Path) -> None:
    """Replace a client's file together with its entry."""
    path = folder / "clients" / "b.safetensors"
    path.write_bytes((folder / "clients" / "a.safetensors").read_bytes())
    edit(
        folder / "audit" / "ledger.json",
        lambda ledger: next(e for e in ledger["files"] if e["client"] == "b").update(sha256=sha256(path)),
    )


def drop_client(folder: Path) -> None:
    """Remove a client from the result and from the ledger."""
    edit_with_ledger(folder, "audit.json", lambda document: document["scores"].pop("b"))
    edit(
        folder / "audit" / "ledger.json",
        lambda ledger: ledger.update(files=[e for e in ledger["files"] if e["client"] != "b"]),
    )


def append_to(name: str) -> Callable[[Path], object]:
    return lambda folder: (folder / name).write_bytes((folder / name).read_bytes() + b" ")


def drop_last_lines(name: str) -> Callable[[Path], object]:
    def drop(folder: Path) -> None:
        lines = (folder / name).read_text().splitlines(keepends=True)
        (folder / name).write_text("".join(lines[:-3]))

    return drop


def write_new_ledger(folder: Path) -> None:
    """Write a ledger of the report that names no files."""
    made = {name: sha256(folder / "audit" / name) for name in ("audit.json", "report.html")}
    ledger = {"files": [], "made": made, "settings": {}, "inputs": {}}
    (folder / "audit" / "ledger.json").write_text(json.dumps(ledger))


TAMPERINGS: dict[str, Callable[[Path], object]] = {
    "changed client file": append_to("clients/b.safetensors"),
    "changed global model": append_to("global.safetensors"),
    "removed client file": lambda folder: (folder / "clients" / "b.safetensors").unlink(),
    "replaced client file and entry": replace_input,
    "changed report": append_to("audit/report.html"),
    "dropped last lines of the report": drop_last_lines("audit/report.html"),
    "dropped last lines of the result": drop_last_lines("audit/audit.json"),
    "changed score": lambda folder: edit(
        folder / "audit" / "audit.json", lambda document: document["scores"].update(a=1.0)
    ),
    "changed score and ledger": lambda folder: edit_with_ledger(
        folder, "audit.json", lambda document: document["scores"].update(a=1.0)
    ),
    "invented flag and ledger": lambda folder: edit_with_ledger(
        folder, "audit.json", lambda document: document["flags"].update(b="did not train")
    ),
    "dropped client and entry": drop_client,
    "dropped entry": in_ledger(
        lambda ledger: ledger.update(files=[e for e in ledger["files"] if e["client"] != "b"])
    ),
    "dropped entry of the global model": in_ledger(
        lambda ledger: ledger.update(files=[e for e in ledger["files"] if e["role"] != "global"])
    ),
    "dropped digest": in_ledger(lambda ledger: ledger["files"][1].update(sha256=None)),
    "dropped all entries": in_ledger(lambda ledger: ledger.update(files=[])),
    "changed setting": in_ledger(lambda ledger: ledger["settings"].update(confidence=0.6)),
    "changed seed": in_ledger(lambda ledger: ledger.update(seed=1)),
    "changed version": in_ledger(lambda ledger: ledger["versions"].update(celm="9")),
    "changed inputs": in_ledger(lambda ledger: ledger["inputs"].update(clients=None)),
    "renamed client": in_ledger(lambda ledger: ledger["files"][1].update(client="z")),
    "entry marked as excluded": in_ledger(
        lambda ledger: ledger["files"][1].update(excluded="unreadable", sha256=None)
    ),
    "new ledger": write_new_ledger,
    "reformatted ledger": append_to("audit/ledger.json"),
}


def record_lines(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "rounds.jsonl").read_text().splitlines()]


def write_lines(folder: Path, lines: list[dict[str, Any]]) -> None:
    """Write the lines as they are; their chain may be broken."""
    text = "".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines)
    (folder / "rounds.jsonl").write_text(text)


def change_line(number: int) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        lines = record_lines(folder)
        lines[number]["client_weights"]["a"] = 0.9
        write_lines(folder, lines)

    return change


def keep_lines(*numbers: int) -> Callable[[Path], None]:
    def keep(folder: Path) -> None:
        lines = record_lines(folder)
        write_lines(folder, [lines[number] for number in numbers])

    return keep


def rewrite_record(folder: Path) -> None:
    """Change the first line, and repair the chain of the following lines."""
    change_line(0)(folder)
    lines = record_lines(folder)
    for line, following in pairwise(lines):
        following["previous"] = hashlib.sha256(json.dumps(line, ensure_ascii=False).encode()).hexdigest()
    write_lines(folder, lines)


RECORD_TAMPERINGS: dict[str, Callable[[Path], object]] = {
    "record: changed line": change_line(1),
    "record: changed last line": change_line(2),
    "record: dropped first line": keep_lines(1, 2),
    "record: dropped line": keep_lines(0, 2),
    "record: dropped last line": keep_lines(0, 1),
    "record: repeated line": keep_lines(0, 1, 1, 2),
    "record: rewritten with a new chain": rewrite_record,
}


def documented() -> dict[str, tuple[bool, bool]]:
    """Return from docs/trust.md whether each tampering is found without the digest, and with it."""
    rows = re.findall(
        r"^\| ([^|]+) \| (yes|\*\*no\*\*) \| (yes|\*\*no\*\*) \|$", PAGE.read_text(), re.MULTILINE
    )
    return {name: (without == "yes", with_digest == "yes") for name, without, with_digest in rows}


def is_found(invoke: Callable[..., Result], *arguments: object) -> bool:
    """Return whether audit-verify refuses the folder; it says so in JSON, too."""
    done = invoke("audit-verify", *arguments, "--format", "json")
    assert done.exit_code in (0, 2), done.output
    assert "Traceback" not in done.output + done.stderr
    assert json.loads(done.stdout)["verified"] is (done.exit_code == 0)
    return done.exit_code == 2


def check_tampering(
    invoke: Callable[..., Result], folder: Path, last: str, tamper: Callable[[], object], name: str
) -> None:
    assert not is_found(invoke, folder, "--last", last)
    tamper()
    found = is_found(invoke, folder), is_found(invoke, folder, "--last", last)
    assert found == documented()[name]
    assert found[1]


@pytest.mark.parametrize("name", TAMPERINGS)
def test_a_tampering_with_an_audit_is_found_as_documented(
    audited: Path, invoke: Callable[..., Result], name: str
) -> None:
    folder = audited / "audit"
    check_tampering(invoke, folder, sha256(folder / "ledger.json"), lambda: TAMPERINGS[name](audited), name)


@pytest.mark.parametrize("name", RECORD_TAMPERINGS)
def test_a_tampering_with_a_record_is_found_as_documented(
    tmp_path: Path, invoke: Callable[..., Result], name: str
) -> None:
    folder = Path(shutil.copytree(TESTS / "flower" / "folder_of_an_older_celm", tmp_path / "state"))
    last = hashlib.sha256((folder / "rounds.jsonl").read_bytes().splitlines()[-1]).hexdigest()
    check_tampering(invoke, folder, last, lambda: RECORD_TAMPERINGS[name](folder), name)


def test_every_documented_tampering_is_tried() -> None:
    assert documented().keys() == TAMPERINGS.keys() | RECORD_TAMPERINGS.keys()


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished audit with its files."""
    folder = tmp_path_factory.mktemp("finished")
    (folder / "clients").mkdir()
    save_file(random_state(0), folder / "global.safetensors")
    for seed, name in enumerate("abc", start=1):
        save_file(random_state(seed), folder / "clients" / f"{name}.safetensors")
    celm.audit(folder / "global.safetensors", folder / "clients", **SETTINGS, out=folder / "audit")
    return folder


@pytest.fixture
def audited(finished: Path, tmp_path: Path) -> Path:
    """A copy of the finished audit."""
    return shutil.copytree(finished, tmp_path / "copy")
