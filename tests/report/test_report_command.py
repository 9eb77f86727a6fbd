"""`celm report` prints the path of the report; an error is one line."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import typer
from typer.testing import CliRunner

from celm.cli.output import with_exit_codes
from celm.cli.report import report_command

app = typer.Typer()
app.command()(with_exit_codes(report_command))


def test_the_path_of_the_report_is_printed(tmp_path: Path, handmade: Callable[..., Path]) -> None:
    folder = handmade(tmp_path / "run")
    done = CliRunner().invoke(app, [str(folder), "--format", "json"])
    assert json.loads(done.stdout) == {"report": str(folder / "report.html")}
    done = CliRunner().invoke(app, [str(folder), "--out", str(tmp_path / "r.html")])
    assert done.stdout == f"report: {tmp_path / 'r.html'}\n"
    assert (tmp_path / "r.html").stat().st_size > 10_000


def test_an_error_is_one_line(tmp_path: Path) -> None:
    done = CliRunner().invoke(app, [str(tmp_path)])
    assert done.exit_code == 2
    assert done.stderr.startswith("error: ")
    assert done.stderr.count("\n") == 1
