"""Names of clients that cannot be shown safely, or that two files claim."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

import celm
from auditing.conftest import Uploads, random_state


@pytest.mark.parametrize(
    ("name", "kept"),
    [
        ("<script>alert(1)", True),
        ("$(reboot)", True),
        ("tab\there", False),
        ("esc\x1b[2J", False),
        ("bidi\u202e", False),
    ],
)
def test_hostile_names_of_files(uploads: Uploads, name: str, kept: bool) -> None:
    uploads.save(name, random_state(7))
    document = uploads.audit_json("--out", "audit", code=0 if kept else 3)
    page = (uploads.folder / "audit" / "report.html").read_text()
    assert "<script>alert" not in page
    if kept:
        assert name in document["scores"]
    else:
        ((shown, reason),) = document["excluded"].items()
        assert shown.isprintable()
        assert "unprintable name" in reason


def test_a_file_name_that_is_not_text(uploads: Uploads) -> None:
    (uploads.clients / "b.safetensors").rename(
        os.fsdecode(os.fsencode(uploads.clients) + b"/\xff\xfe.safetensors")
    )
    document = uploads.audit_json("--out", "audit", code=3)
    assert "unprintable name" in next(iter(document["excluded"].values()))
    assert uploads.invoke("audit-verify", "audit").exit_code == 0


def test_names_that_differ_in_case_only_are_excluded(uploads: Uploads) -> None:
    uploads.save("B", random_state(7))
    document = uploads.audit_json(code=3)
    assert list(document["scores"]) == ["a", "c"]
    assert set(document["excluded"]) == {"b", "B"}
    assert all("case" in reason for reason in document["excluded"].values())


@pytest.mark.parametrize("name", ["../../x", "x" * 10_000, "a\nb", "", "/etc/passwd"])
def test_hostile_names_of_models_in_memory(tmp_path: Path, name: str) -> None:
    states = {"a": random_state(1), "c": random_state(3), name: random_state(2)}
    document = celm.audit(
        random_state(0),
        states,
        model="mlp",
        options={"widths": [4]},
        input_shape=(1, 2, 3),
        classes=3,
        probe={"steps": 2},
        out=tmp_path / "audit",
    )
    assert list(document.scores) == ["a", "c"]
    ((shown, reason),) = document.excluded.items()
    assert len(shown) <= 60
    assert "name" in reason
    assert sorted(path.name for path in tmp_path.iterdir()) == ["audit"]
