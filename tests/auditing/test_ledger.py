"""The ledger: its content, and that a change of any file is detected."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from auditing.conftest import Uploads
from celm.auditing.verify import find_differences, verify_audit
from celm.base.errors import CelmError


def sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def test_the_ledger_has_every_file_that_was_read(uploads: Uploads) -> None:
    (uploads.clients / "b.safetensors").write_bytes(b"nonsense")
    uploads.audit_json("--out", "audit", "--seed", "7", code=3)
    folder = uploads.folder / "audit"
    ledger = json.loads((folder / "ledger.json").read_text())
    files = {entry["client"]: entry for entry in ledger["files"]}
    assert set(files) == {None, "a", "b", "c"}
    assert files[None]["sha256"] == sha256(uploads.global_file)
    for name in "abc":
        path = uploads.clients / f"{name}.safetensors"
        assert files[name]["sha256"] == sha256(path)
        assert files[name]["size"] == path.stat().st_size
        assert (folder / files[name]["path"]).resolve() == path.resolve()
    assert "invalid safetensors" in files["b"]["excluded"]
    assert ledger["seed"] == 7
    assert ledger["settings"]["probe"]["steps"] == 4
    assert {"python", "torch", "numpy", "celm"} <= set(ledger["versions"])
    assert ledger["made"] == {name: sha256(folder / name) for name in ("audit.json", "report.html")}


def test_the_ledger_has_the_digest_of_a_file_that_does_not_match(uploads: Uploads) -> None:
    path = uploads.save("b", {"strange": torch.ones(3)})
    uploads.audit_json("--out", "audit", code=3)
    ledger = json.loads((uploads.folder / "audit" / "ledger.json").read_text())
    (entry,) = [entry for entry in ledger["files"] if entry["client"] == "b"]
    assert entry["sha256"] == sha256(path)
    assert entry["size"] == path.stat().st_size
    assert "missing" in entry["excluded"]
    path.write_bytes(b"replaced")
    assert "b.safetensors" in uploads.invoke("audit-verify", "audit").stderr


def test_an_unchanged_audit_verifies(uploads: Uploads) -> None:
    result = uploads.audit("--out", "audit")
    seal = sha256(uploads.folder / "audit" / "ledger.json")
    assert seal in result.stdout
    for more in ((), ("--full",)):
        done = uploads.invoke("audit-verify", "audit", *more)
        assert done.exit_code == 0, done.output
        assert "the report belongs to its files: 4 files checked" in done.stdout
        assert seal in done.stdout


@pytest.mark.parametrize(
    "name", ["global.safetensors", "clients/b.safetensors", "audit/report.html", "audit/audit.json"]
)
@pytest.mark.parametrize("act", ["change", "remove"])
def test_a_changed_or_missing_file_is_named(uploads: Uploads, name: str, act: str) -> None:
    uploads.audit_json("--out", "audit")
    path = uploads.folder / name
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


def test_a_full_check_detects_numbers_that_do_not_follow_from_the_files(uploads: Uploads) -> None:
    """A repeated audit detects a result that was rewritten together with its ledger."""
    uploads.audit_json("--out", "audit")
    folder = uploads.folder / "audit"
    result = json.loads((folder / "audit.json").read_text())
    result["scores"]["a"] += 0.2
    (folder / "audit.json").write_text(json.dumps(result))
    ledger = json.loads((folder / "ledger.json").read_text())
    ledger["made"]["audit.json"] = sha256(folder / "audit.json")
    (folder / "ledger.json").write_text(json.dumps(ledger))
    assert uploads.invoke("audit-verify", "audit").exit_code == 0
    done = uploads.invoke("audit-verify", "audit", "--full")
    assert done.exit_code == 2
    assert "differs: scores.a" in done.stderr


def test_files_without_a_digest_are_counted(uploads: Uploads) -> None:
    (uploads.clients / "b.safetensors").unlink()
    (uploads.clients / "b.safetensors").symlink_to(uploads.global_file)
    uploads.audit_json("--out", "audit", code=3)
    assert "3 files checked, 1 without digest" in uploads.invoke("audit-verify", "audit").stdout


@pytest.mark.parametrize(
    "content",
    [None, "", "[]", "{}", '{"files": 3}', '{"files": [1], "made": {}, "settings": {}, "inputs": {}}'],
)
def test_an_invalid_ledger_is_an_error_of_one_line(
    tmp_path: Path, refused: Callable[..., str], content: str | None
) -> None:
    (tmp_path / "audit").mkdir()
    if content is not None:
        (tmp_path / "audit" / "ledger.json").write_text(content)
    assert "audit" in refused("audit-verify", "audit")


def test_differences_are_reported_at_any_depth() -> None:
    one = {"scores": {"a": 0.5}, "evidence": {"a": [1.0, 2.0]}}
    assert find_differences(one, {"scores": {"a": 0.5000001}, "evidence": {"a": [1.0, 2]}}) == []
    assert find_differences(one, one | {"evidence": {"a": [1.0, 2.1]}}) == ["evidence.a[1]: 2.1, not 2.0"]
    assert "['b']" in find_differences(one, one | {"scores": {"b": 0.5}})[0]


def rewrite(folder: Path, **settings: Any) -> None:
    path = folder / "audit" / "ledger.json"
    ledger = json.loads(path.read_text())
    ledger["settings"] |= settings
    path.write_text(json.dumps(ledger))


def test_a_ledger_cannot_run_code(uploads: Uploads, refused: Callable[..., str]) -> None:
    uploads.audit_json("--out", "audit")
    rewrite(uploads.folder, model="os:system", options={"command": "touch executed"})
    assert uploads.invoke("audit-verify", "audit").exit_code == 0
    assert "--model os:system" in refused("audit-verify", "audit", "--full")
    assert "is of model 'os:system', not of 'mlp'" in refused(
        "audit-verify", "audit", "--full", "--model=mlp"
    )
    assert "add --full" in refused("audit-verify", "audit", "--model=os:system")
    assert not (uploads.folder / "executed").exists()


def test_an_audit_of_a_user_model_is_repeated_if_the_model_is_named(
    uploads: Uploads,
    refused: Callable[..., str],
) -> None:
    (uploads.folder / "own_audited.py").write_text(
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
def test_a_ledger_may_contain_settings_only(uploads: Uploads, more: dict[str, Any]) -> None:
    uploads.audit_json("--out", "audit")
    rewrite(uploads.folder, **more)
    with pytest.raises(CelmError, match="damaged ledger"):
        verify_audit(uploads.folder / "audit", full=True)
    assert not (uploads.folder / "elsewhere").exists()


@pytest.mark.parametrize(
    ("old", "new", "value"),
    [("starts", "num_starts", 5), ("hold", "fixed_inputs", "x.safetensors"), ("returns", "output", "logits")],
)
def test_a_ledger_of_an_older_version_is_refused_with_the_new_name(
    uploads: Uploads, refused: Callable[..., str], old: str, new: str, value: object
) -> None:
    uploads.audit_json("--out", "audit")
    rewrite(uploads.folder, **{old: value})
    assert uploads.invoke("audit-verify", "audit").exit_code == 0
    error = refused("audit-verify", "audit", "--full")
    assert f"'{old}'" in error
    assert f"'{new}'" in error
    assert "older" in error
    assert "damaged" not in error


@pytest.mark.parametrize(
    "entry", [{"path": "x"}, {"path": "x", "sha256": 3, "role": 1, "round": 2, "client": []}]
)
def test_a_ledger_with_invalid_entries_is_an_error(uploads: Uploads, entry: dict[str, Any]) -> None:
    uploads.audit_json("--out", "audit")
    path = uploads.folder / "audit" / "ledger.json"
    ledger = json.loads(path.read_text())
    path.write_text(json.dumps(ledger | {"files": [entry], "inputs": {"global": "x", "clients": 3}}))
    result = uploads.invoke("audit-verify", "audit", "--full")
    assert result.exit_code == 2
    assert "Traceback" not in result.output + result.stderr
