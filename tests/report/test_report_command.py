"""`celm report`: says where the report is; a mistake is one line."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import typer
from typer.testing import CliRunner

from celm.cli.output import with_exit_codes
from celm.cli.report import command

app = typer.Typer()
app.command()(with_exit_codes(command))


def test_where_the_report_is(tmp_path: Path, handmade: Callable[..., Path]) -> None:
    place = handmade(tmp_path / "run")
    told = CliRunner().invoke(app, [str(place), "--format", "json"])
    assert json.loads(told.stdout) == {"report": str(place / "report.html")}
    told = CliRunner().invoke(app, [str(place), "--out", str(tmp_path / "r.html")])
    assert told.stdout == f"report: {tmp_path / 'r.html'}\n"
    assert (tmp_path / "r.html").stat().st_size > 10_000


def test_a_folder_that_is_no_run_is_one_line(tmp_path: Path) -> None:
    told = CliRunner().invoke(app, [str(tmp_path)])
    assert told.exit_code == 2
    assert told.stderr.startswith("error: ")
    assert told.stderr.count("\n") == 1
