"""Read the folder of a study for its report: tables, finished runs, and runs that failed or are missing.

A folder without study.json was assembled by hand or written by an older version. Its runs are grouped by settings.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from celm.base.errors import CelmError
from celm.records.study_records import (
    RunKey,
    StudyManifest,
    TableFile,
    read_errors,
    read_study_manifest,
    read_table,
)
from celm.report.plain_names import plain_label
from celm.report.study_settings import RunsByMethod, group_by_settings
from celm.report.views import RunView

_RUN_REPORT = "report.html"


@dataclass(frozen=True)
class StudyRuns:
    """The runs of a study by state. Folders are relative to the study's folder."""

    finished: Mapping[str, RunView]
    """Folder to run."""
    failed: Mapping[str, str]
    """Label of the run to its error."""
    unfinished: Sequence[str]
    """Folders."""
    missing: Mapping[str, str]
    """Row to those of its runs that were not started."""


class StudyView:
    """The folder of a study or a comparison as its report shows it."""

    def __init__(self, path: Path) -> None:
        self.table: TableFile = read_table(path / "table.json")
        self.times = read_table(path / "times.json") if (path / "times.json").is_file() else None
        """Measured times; None if the study measures none."""
        self.manifest = read_study_manifest(path / "study.json")
        self.runs = find_runs(path, self.manifest)
        self.run_reports = {
            folder: report
            for folder, run in self.runs.finished.items()
            if (report := run.path / _RUN_REPORT).is_file()
        }
        """Folder of a run to its own report."""

    @property
    def rows(self) -> Mapping[str, RunsByMethod]:
        """Row to method to finished runs."""
        return group_runs(self.runs.finished, self.manifest)


def find_runs(path: Path, manifest: StudyManifest | None) -> StudyRuns:
    """Return the runs below the folder `path` by state."""
    run_keys = manifest.cells if manifest else {}
    finished, failed, unfinished = {}, {}, []
    errors = read_errors(path / "errors.json")
    for folder in sorted(settings_file.parent for settings_file in path.rglob("settings.toml")):
        run_folder = folder.relative_to(path).as_posix()
        run_key = run_keys.get(run_folder)
        if not (folder / "result.json").is_file():
            if run_key is None or run_key.key not in errors:
                unfinished.append(run_folder)
            continue
        try:
            finished[run_folder] = RunView(folder)
        except CelmError as error:
            failed[run_key.key if run_key else run_folder] = str(error)
    finished_keys = {run_keys[folder].key for folder in finished if folder in run_keys}
    failed = {key: error for key, error in errors.items() if key not in finished_keys} | failed
    labels = {run_key.key: _run_label(run_key) for run_key in run_keys.values()}
    started = {*finished, *unfinished, *(f for f, run_key in run_keys.items() if run_key.key in failed)}
    return StudyRuns(
        finished,
        {labels.get(key, key): error for key, error in failed.items()},
        unfinished,
        _list_missing(run_keys, started),
    )


def _run_label(run_key: RunKey) -> str:
    return f"{plain_label(run_key.row)}, {run_key.method}, seed {run_key.seed}"


def _list_missing(run_keys: Mapping[str, RunKey], started: set[str]) -> dict[str, str]:
    """Return row to the methods and seeds that were not started."""
    rows: dict[str, dict[str, list[str]]] = {}
    for folder, run_key in run_keys.items():
        if folder not in started:
            rows.setdefault(run_key.row, {}).setdefault(run_key.method, []).append(str(run_key.seed))
    started_rows = {run_key.row for folder, run_key in run_keys.items() if folder in started}
    return {
        row: "; ".join(f"{method} (seed {', '.join(seeds)})" for method, seeds in methods.items())
        if row in started_rows
        else "all runs"
        for row, methods in rows.items()
    }


def group_runs(
    runs: Mapping[str, RunView], manifest: StudyManifest | None
) -> dict[str, dict[str, list[RunView]]]:
    """Return row to method to runs, as the manifest has them; group runs outside the manifest by settings."""
    rows: dict[str, dict[str, list[RunView]]] = {}
    run_keys = manifest.cells if manifest else {}
    for folder, run_key in run_keys.items():
        if folder in runs:
            rows.setdefault(run_key.row, {}).setdefault(run_key.method, []).append(runs[folder])
    others = [run for folder, run in runs.items() if folder not in run_keys]
    for row, methods in group_by_settings(others).items():
        for method, method_runs in methods.items():
            rows.setdefault(row, {}).setdefault(method, []).extend(method_runs)
    return rows
