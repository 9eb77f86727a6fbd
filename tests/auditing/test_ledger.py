"""The ledger: what is in it, and that a change to any file is found and named."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from auditing.conftest import Uploads
from celm.auditing.ledger import differences
from celm.auditing.verifying import verify
from celm.base.errors import CelmError


def sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def test_every_file_that_was_read_is_in_it(uploads: Uploads) -> None:
    (uploads.clients / "b.safetensors").write_bytes(b"nonsense")
    uploads.found("--out", "audit", "--seed", "7", code=3)
    folder = uploads.place / "audit"
    told = json.loads((folder / "ledger.json").read_text())
    files = {entry["client"]: entry for entry in told["files"]}
    assert set(files) == {None, "a", "b", "c"}
    assert files[None]["sha256"] == sha256(uploads.start)
    for name in "abc":
        path = uploads.clients / f"{name}.safetensors"
        assert files[name]["sha256"] == sha256(path)
        assert files[name]["size"] == path.stat().st_size
        assert (folder / files[name]["path"]).resolve() == path.resolve()
    assert "not a whole safetensors" in files["b"]["excluded"]
    assert told["seed"] == 7
    assert told["settings"]["probe"]["steps"] == 4
    assert {"python", "torch", "numpy", "celm"} <= set(told["versions"])
    assert told["made"] == {name: sha256(folder / name) for name in ("audit.json", "report.html")}


def test_an_untouched_audit_is_confirmed(uploads: Uploads) -> None:
    result = uploads.audit("--out", "audit")
    seal = sha256(uploads.place / "audit" / "ledger.json")
    assert seal in result.stdout
    for more in ((), ("--full",)):
        done = uploads.invoke("audit-verify", "audit", *more)
        assert done.exit_code == 0, done.output
        assert "the report belongs to its 4 files" in done.stdout
        assert seal in done.stdout


@pytest.mark.parametrize(
    "name", ["global.safetensors", "clients/b.safetensors", "audit/report.html", "audit/audit.json"]
)
@pytest.mark.parametrize("act", ["change", "remove"])
def test_a_changed_or_missing_file_is_named(uploads: Uploads, name: str, act: str) -> None:
    uploads.found("--out", "audit")
    path = uploads.place / name
    if act == "remove":
        path.unlink()
    else:
        path.write_bytes(path.read_bytes()[:-1] + b"?")
    done = uploads.invoke("audit-verify", "audit")
    assert done.exit_code == 2
    assert path.name in done.stderr
    assert ("has changed" if act == "change" else "no such file") in done.stderr
    assert done.stderr.count("\n") == 1
    as_json = uploads.invoke("audit-verify", "audit", "--format", "json")
    assert as_json.exit_code == 2
    assert json.loads(as_json.stdout)["verified"] is False


def test_numbers_that_do_not_follow_from_the_files_are_found_by_repeating(uploads: Uploads) -> None:
    """Somebody who rewrites result and ledger alike is found out by the audit itself."""
    uploads.found("--out", "audit")
    folder = uploads.place / "audit"
    result = json.loads((folder / "audit.json").read_text())
    result["scores"]["a"] += 0.2
    (folder / "audit.json").write_text(json.dumps(result))
    ledger = json.loads((folder / "ledger.json").read_text())
    ledger["made"]["audit.json"] = sha256(folder / "audit.json")
    (folder / "ledger.json").write_text(json.dumps(ledger))
    assert uploads.invoke("audit-verify", "audit").exit_code == 0
    done = uploads.invoke("audit-verify", "audit", "--full")
    assert done.exit_code == 2
    assert "repeated, the audit differs: scores.a" in done.stderr


@pytest.mark.parametrize(
    "content",
    [None, "", "[]", "{}", '{"files": 3}', '{"files": [1], "made": {}, "settings": {}, "inputs": {}}'],
)
def test_what_is_no_ledger_is_an_error_of_one_line(
    tmp_path: Path, refused: Callable[..., str], content: str | None
) -> None:
    (tmp_path / "audit").mkdir()
    if content is not None:
        (tmp_path / "audit" / "ledger.json").write_text(content)
    assert "audit" in refused("audit-verify", "audit")


def test_differences_are_found_at_any_depth() -> None:
    one = {"scores": {"a": 0.5}, "evidence": {"a": [1.0, 2.0]}}
    assert differences(one, {"scores": {"a": 0.5000001}, "evidence": {"a": [1.0, 2]}}) == []
    assert differences(one, one | {"evidence": {"a": [1.0, 2.1]}}) == ["evidence.a[1]: 2.1, not 2.0"]
    assert "names ['b']" in differences(one, one | {"scores": {"b": 0.5}})[0]


def rewrite(place: Path, **settings: Any) -> None:
    path = place / "audit" / "ledger.json"
    ledger = json.loads(path.read_text())
    ledger["settings"] |= settings
    path.write_text(json.dumps(ledger))


def test_a_ledger_has_no_code_run(uploads: Uploads, refused: Callable[..., str]) -> None:
    uploads.found("--out", "audit")
    rewrite(uploads.place, model="os:system", options={"command": "touch executed"})
    assert uploads.invoke("audit-verify", "audit").exit_code == 0
    assert "--model os:system" in refused("audit-verify", "audit", "--full")
    assert "is of model 'os:system', not of 'mlp'" in refused(
        "audit-verify", "audit", "--full", "--model=mlp"
    )
    assert "add --full" in refused("audit-verify", "audit", "--model=os:system")
    assert not (uploads.place / "executed").exists()


def test_an_audit_of_ones_own_model_is_repeated_by_who_names_it(
    uploads: Uploads,
    refused: Callable[..., str],
) -> None:
    (uploads.place / "own_audited.py").write_text(
        "from celm.models import build_model\n\n"
        "def make(input_shape, classes):\n    return build_model('mlp', {'widths': [4]}, input_shape, classes)\n"
    )
    own = ("--model", "own_audited:make")
    arguments = list(uploads.arguments("--out", "audit", *own))
    at = arguments.index("options.widths=[4]")
    del arguments[at - 1 : at + 1]
    done = uploads.invoke(*arguments)
    assert done.exit_code == 0, done.output
    assert "--model own_audited:make" in refused("audit-verify", "audit", "--full")
    assert uploads.invoke("audit-verify", "audit", "--full", *own).exit_code == 0


@pytest.mark.parametrize("more", [{"out": "elsewhere"}, {"watch": 1}, {"prober": "x"}, {"classes": 0}])
def test_a_ledger_holds_settings_and_nothing_else(uploads: Uploads, more: dict[str, Any]) -> None:
    uploads.found("--out", "audit")
    rewrite(uploads.place, **more)
    with pytest.raises(CelmError, match="is damaged"):
        verify(uploads.place / "audit", full=True)
    assert not (uploads.place / "elsewhere").exists()
