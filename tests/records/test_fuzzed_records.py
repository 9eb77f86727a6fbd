"""Record files with random damage: each is read and shown, or refused in one line.

10 cases of each kind; the environment variable CELM_FUZZ sets another number.
"""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors.torch import save_file

import celm
from auditing.conftest import SETTINGS, random_state
from celm.auditing.verify import verify_audit
from celm.base.errors import CelmError
from celm.records.run_files import RunFiles
from celm.report.build import build_report

CASES = int(os.environ.get("CELM_FUZZ", "10"))
RUN = celm.Experiment(
    split={"name": "pls", "clients": 3},
    model={"name": "mlp", "widths": [4]},
    probe={"steps": 1},
    run={"rounds": 2},
)
HYPOTHESIS = settings(
    max_examples=CASES,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)

values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(10**20), 10**20)
    | st.floats()
    | st.text(max_size=5)
    | st.sampled_from(["client-0", "client-9", "\ud800", "\x1b[2J", "\u202e"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)
edits = st.lists(
    st.tuples(
        st.sampled_from(["replace", "delete", "add"]), st.integers(0, 2**32), st.integers(0, 3), values
    ),
    min_size=1,
    max_size=2,
)


def edit(document: Any, action: str, choice: int, depth: int, value: Any) -> Any:
    """Replace, delete or add a value somewhere in a document."""
    if depth == 0 or not isinstance(document, dict | list) or not document:
        return value
    keys: list[Any] = list(document) if isinstance(document, dict) else list(range(len(document)))
    key = keys[choice % len(keys)]
    if depth > 1 and isinstance(document[key], dict | list):
        document[key] = edit(document[key], action, choice // len(keys), depth - 1, value)
    elif action == "delete":
        del document[key]
    elif action == "add" and isinstance(document, dict):
        document[f"{key}+"] = value
    else:
        document[key] = value
    return document


def check_refusal(error: CelmError) -> None:
    reason = str(error)
    assert reason.isprintable(), reason
    assert len(reason) < 1000


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run without checksums, so that damage reaches the schemas."""
    folder = celm.run(RUN, tmp_path_factory.mktemp("runs") / "run").folder
    result = json.loads((folder / "result.json").read_text())
    del result["files"], result["sha256"]
    (folder / "result.json").write_text(json.dumps(result))
    return folder


@pytest.fixture(scope="module")
def audited(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("audits")
    for seed, name in enumerate(("global", "a", "b")):
        save_file(random_state(seed), folder / f"{name}.safetensors")
    clients = [folder / "a.safetensors", folder / "b.safetensors"]
    celm.audit(folder / "global.safetensors", clients, out=folder / "audit", **SETTINGS)
    return folder / "audit"


@pytest.mark.parametrize("name", ["result.json", "environment.json", "rounds.jsonl"])
@given(edits=edits)
@HYPOTHESIS
def test_damaged_records_of_a_run_are_shown_or_refused(name: str, edits: Any, run: Path) -> None:
    folder = run.with_name("damaged")
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(run, folder)
    path = folder / name
    lines = path.read_text().splitlines() if name.endswith("l") else [path.read_text()]
    document = json.loads(lines[-1])
    for change in edits:
        document = edit(document, *change)
    path.write_text("\n".join([*lines[:-1], json.dumps(document)]) + "\n")
    try:
        RunFiles.open(folder).read_finished()
        build_report(folder)
        celm.resume(folder)
    except CelmError as error:
        check_refusal(error)


@pytest.mark.parametrize("name", ["audit.json", "ledger.json"])
@given(edits=edits)
@HYPOTHESIS
def test_damaged_records_of_an_audit_are_verified_or_refused(name: str, edits: Any, audited: Path) -> None:
    path = audited / name
    before = path.read_bytes()
    document = json.loads(before)
    for change in edits:
        document = edit(document, *change)
    path.write_text(json.dumps(document))
    try:
        problems = verify_audit(audited)
    except CelmError as error:
        check_refusal(error)
    else:
        assert all(len(problem) < 2000 for problem in problems)
    finally:
        path.write_bytes(before)


@given(content=st.binary(max_size=200) | st.just(b"[" * 100_000) | st.just(b'{"a":' * 100_000))
@HYPOTHESIS
def test_any_bytes_in_place_of_a_result_are_refused(content: bytes, run: Path) -> None:
    folder = run.with_name("bytes")
    folder.mkdir(exist_ok=True)
    shutil.copy(run / "settings.toml", folder)
    (folder / "result.json").write_bytes(content)
    with pytest.raises(CelmError) as caught:
        RunFiles.open(folder).read_finished()
    check_refusal(caught.value)
