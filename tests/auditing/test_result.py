"""The result of an audit on the screen, as a page, a table, a document and figures."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from matplotlib.axes import Axes
from safetensors.torch import load_file
from typer.testing import Result

import celm
from auditing.conftest import (
    SETTINGS,
    Uploads,
    audit_in_memory,
)
from celm.base.errors import CelmError


def test_too_few_starts_are_reported(uploads: Uploads) -> None:
    few = "2 starts of the probe: too few"
    assert few in uploads.audit("--num-starts", 2, "--out", "few").stdout
    assert few in (uploads.folder / "few" / "report.html").read_text()
    assert "too few" not in uploads.audit("--out", "enough").stdout
    assert "too few" not in (uploads.folder / "enough" / "report.html").read_text()


def test_the_screen_shows_flags_exclusions_and_the_report(uploads: Uploads) -> None:
    uploads.save("lazy", load_file(uploads.global_file))
    (uploads.clients / "b.safetensors").write_bytes(b"x")
    result = uploads.audit("--out", "audit")
    assert result.exit_code == 3
    for text in (
        "free-rider: lazy: returned the model",
        "excluded: b: invalid safetensors",
        "report: audit/report.html",
    ):
        assert text in result.stdout
    assert result.stderr == ""


def test_the_page_shows_flags_and_digests(uploads: Uploads) -> None:
    uploads.save("lazy", load_file(uploads.global_file))
    uploads.audit_json("--out", "audit")
    page = (uploads.folder / "audit" / "report.html").read_text()
    assert "Content-Security-Policy" in page
    assert "returned the model it was given, unchanged" in page
    ledger = json.loads((uploads.folder / "audit" / "ledger.json").read_text())
    assert all(entry["sha256"] in page for entry in ledger["files"])
    assert "standard error of a score is that of the probe alone" in page


def test_a_result_is_a_table_a_document_a_page_and_figures(tmp_path: Path) -> None:
    result = audit_in_memory()
    table = result.to_dataframe()
    assert list(table.index) == ["a", "b", "c"]
    assert table["score"].to_dict() == result.scores
    assert table.loc["b", "evidence of 1"] == result.evidence["b"][1]
    assert json.loads(result.to_json())["scores"] == result.scores
    assert result.to_json(tmp_path / "audit.json") is None
    assert (tmp_path / "audit.json").read_text() == result.to_json()
    assert result.to_html(tmp_path / "audit.html") is None
    assert (tmp_path / "audit.html").read_text() == result.to_html()
    assert repr(result).startswith("Audit(a 0.")
    assert len(repr(result)) < 400
    for plot in (result.plot_evidence, result.plot_shares, result.plot_scores):
        assert isinstance(plot(), Axes)


def test_without_pandas_a_data_frame_is_a_clear_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "pandas", None)
    with pytest.raises(CelmError, match="pandas"):
        audit_in_memory().to_dataframe()


def test_help_says_the_exit_codes(invoke: Callable[..., Result]) -> None:
    text = " ".join(invoke("audit", "--help").output.split())
    assert "3 done, but clients were excluded" in text


def test_a_hundred_thousand_bad_files_give_a_bounded_page_and_screen(
    uploads: Uploads, capsys: pytest.CaptureFixture[str]
) -> None:
    """The document of an audit as it is with this many excluded clients, noted clients and files."""
    from celm.auditing.result import Audit
    from celm.cli.audit import _print_audit

    audit = celm.audit(uploads.global_file, uploads.clients, **SETTINGS)
    names = [f"bad-{i}" for i in range(100_000)]
    reasons = dict.fromkeys(names, "file is empty")
    document = {**audit.document, "excluded": reasons, "notes": reasons}
    entry = {"role": "client", "round": "", "path": "x", "size": None, "sha256": None}
    many = Audit(document, [{**entry, "client": name} for name in names])
    page = many.to_html()
    assert len(page) < 2_000_000
    assert page.count("99000 more are in audit.json") == 2
    assert "99000 more are in ledger.json" in page
    _print_audit(many)
    screen = capsys.readouterr().out
    assert len(screen.splitlines()) < 200
    assert "excluded: bad-49: file is empty" in screen
    assert "excluded: 99,950 more; --format json lists all" in screen
