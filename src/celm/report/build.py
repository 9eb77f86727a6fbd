"""Build the report of a run, a study or a federation as one self-contained HTML file."""

from __future__ import annotations

from pathlib import Path

from celm.base.errors import CelmError
from celm.base.files import os_errors_as_celm_error, write_text
from celm.records.federation_files import is_state_folder

_REPORT_NAME = "report.html"
_REPORT_SUFFIXES = (".html", ".htm")


def build_report(path: Path, probe_images: bool = False, page_folder: Path | None = None) -> str:
    """Return the page of the folder `path`. Its links start at `page_folder`, by default `path`."""
    if (path / "table.json").is_file():
        from celm.report.study_page import study_page
        from celm.report.study_view import StudyView

        return study_page(StudyView(path), page_folder or path)
    if (path / "settings.toml").is_file():
        from celm.report.run_page import run_page
        from celm.report.views import RunView

        return run_page(RunView(path), probe_images)
    if is_state_folder(path):
        from celm.report.federation_page import federation_page
        from celm.report.views import FederationView

        return federation_page(FederationView(path))
    if (path / "cells").is_dir() or (path / "study.json").is_file():
        raise CelmError(
            f"cannot report on {path}: the study has no table yet",
            "repeat the command to finish it, or give the folder of a run in it",
        )
    if (path / "ledger.json").is_file() and (path / _REPORT_NAME).is_file():
        raise CelmError(f"cannot report on {path}: it is an audit, whose report is {path / _REPORT_NAME}")
    missing = "has no settings.toml, table.json or rounds.jsonl" if path.is_dir() else "is not a folder"
    raise CelmError(
        f"cannot report on {path}: it {missing}",
        "give a folder of celm run, celm compare, celm study or a Flower strategy",
    )


def write_report(path: Path, out: Path | None = None, probe_images: bool = False) -> Path:
    """Write the report atomically, by default into the folder itself. Return its path."""
    report_path = out or path / _REPORT_NAME
    if report_path.suffix.lower() not in _REPORT_SUFFIXES:
        raise CelmError(
            f"cannot write {report_path}: a report is an HTML file", "use a name that ends in .html"
        )
    with os_errors_as_celm_error(report_path, "write"):
        if report_path.is_dir():
            raise CelmError(f"cannot write {report_path}: it is a folder", "give a file, such as report.html")
    write_text(report_path, build_report(path, probe_images, page_folder=report_path.parent))
    return report_path
