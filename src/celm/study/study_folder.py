"""Write the folder of a study: tables, times, manifest, errors and, with ground truth, the truth.

A study writes when it ends, when it is interrupted, and at intervals. So a killed study leaves a table of the runs that
ended. Several processes may share a folder. Each reads the folder and writes under one lock, so the last to write has
seen what the others finished.

    table.md, .tex, .csv, .json     the table
    times.md, .tex, .csv, .json     wall-clock metrics, if the study has some
    study.json                      the command, and the position of each run
    errors.json                     failed run to its error
    truth.json                      true contributions, of a study with ground truth
    cells/                          the run folders
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass, replace
from pathlib import Path

from celm import __version__
from celm.base import locking
from celm.base.errors import CelmError
from celm.base.files import dump_json, os_errors_as_celm_error, remove_partial_files, write_text
from celm.records.schema import write_record
from celm.records.study_records import RunKey, StudyManifest, read_study_manifest
from celm.study.ground_truth import save_truth
from celm.study.plan import GridKey, RunSpec, plan_runs
from celm.study.results import MetricsByRun, RunOutcome, compute_metrics, merge_existing
from celm.study.scales import Scale, seeds_for_scale
from celm.study.scheduler import GridProgress, ProgressCallback
from celm.study.spec import StudySpec
from celm.study.study_tables import build_study_table
from celm.study.table import ResultTable, save_table

MANIFEST_NAME, ERRORS_NAME = "study.json", "errors.json"
AUTOSAVE_SECONDS = 60.0
"""Time between two writes while the study runs."""
LOCK_TIMEOUT_SECONDS = 2.0
"""How long to wait for another process that writes, while the study runs or is interrupted."""


@dataclass(frozen=True)
class StudyOutput:
    table: ResultTable
    times: ResultTable
    """Wall-clock metrics; without rows if the study has none."""
    errors: Mapping[str, str]
    """The content of errors.json: `RunKey.key` to error."""
    failed: Mapping[str, str]
    """Label of a run that was requested now to its error."""


class StudyFolder:
    """The folder of a study while it runs. `name` is the study's name or file, as the user gave it."""

    def __init__(
        self,
        study: StudySpec,
        name: str,
        scale: Scale,
        path: Path,
        only: str,
        specs: Mapping[GridKey, RunSpec],
    ) -> None:
        self.study, self.name, self.scale, self.path, self.only = study, name, scale, path, only
        self.specs = specs
        self.all_runs = plan_runs(study, scale, path) if only else specs
        """All runs of the study, also those that `only` excludes."""
        self._keys_by_folder = {spec.folder: key for key, spec in specs.items()}
        self._outcomes: dict[GridKey, RunOutcome] = {}
        self._metrics_by_run: MetricsByRun = {}
        self._last_write = (0, time.monotonic())
        """Number of ended runs, and time, of the last write."""

    def autosave(self, callback: ProgressCallback) -> ProgressCallback:
        """Return a callback that also stores the outcomes and writes them at intervals."""

        def save_and_report(progress: GridProgress) -> None:
            callback(progress)
            self._outcomes = {
                self._keys_by_folder[outcome.spec.folder]: outcome for outcome in progress.outcomes
            }
            saved_count, saved_at = self._last_write
            if len(self._outcomes) > saved_count and time.monotonic() - saved_at > AUTOSAVE_SECONDS:
                self._last_write = (saved_count, time.monotonic())
                with suppress(CelmError):  # the last write reports it, if it still fails
                    self.write(self._outcomes, LOCK_TIMEOUT_SECONDS)

        return save_and_report

    def write(self, new_outcomes: Mapping[GridKey, RunOutcome], lock_timeout: float = -1) -> StudyOutput:
        """Write the outcomes, together with other runs of the study that the folder contains.

        `lock_timeout` is how many seconds to wait while another process writes; -1 waits without limit.
        """
        with self.lock(lock_timeout):
            remove_partial_files(self.path)
            existing_outcomes = merge_existing(self.study, self.all_runs, new_outcomes)
            outcomes, self._metrics_by_run = compute_metrics(
                self.study, existing_outcomes, self._metrics_by_run
            )
            table, times = (
                build_study_table(self.study, outcomes, self._metrics_by_run, self.scale, wall_clock)
                for wall_clock in (False, True)
            )
            save_table(table, self.path)
            if times.rows:
                save_table(times, self.path, "times")
            write_study_manifest(
                self.study, self.name, self.scale, self.path, self.all_runs.values(), self.only
            )
            error_keys = {
                (row, method, seed): RunKey(row=row, method=method, seed=seed).key
                for row, method, seed in outcomes
            }
            errors = {error_keys[key]: outcome.error for key, outcome in outcomes.items() if outcome.error}
            save_errors(self.path / ERRORS_NAME, errors, set(error_keys.values()))
            if self.study.ground_truth:
                save_truth(self.study, outcomes, self.path)
        self._last_write = (len(new_outcomes), time.monotonic())
        failed = {
            spec.label: errors[error_keys[key]]
            for key, spec in self.specs.items()
            if error_keys.get(key) in errors
        }
        return StudyOutput(table, times, errors, failed)

    def write_partial(self, warn: Callable[[str], None]) -> None:
        """Write the runs that ended before an interrupt. If that fails, only warn, because the user wants to stop."""
        try:
            if self._outcomes:
                self.write(self._outcomes, LOCK_TIMEOUT_SECONDS)
        except CelmError as error:
            warn(f"the table was not updated: {error}")

    def lock(self, timeout: float) -> AbstractContextManager[None]:
        with os_errors_as_celm_error(self.path, "create"):
            self.path.mkdir(parents=True, exist_ok=True)
        return locking.exclusive(self.path / "study.lock", timeout)


# --- study.json ---------------------------------------------------------------------------------------------


def write_study_manifest(
    study: StudySpec, name: str, scale: Scale, out: Path, specs: Iterable[RunSpec], only: str = ""
) -> None:
    """Write study.json. `name` is the study's name or file, as the user gave it; `specs` are all runs of the study."""
    manifest = StudyManifest(
        command=["celm", "study", name, "--scale", scale.value],
        title=study.title + scale.note,
        about=study.about,
        study=name,
        scale=scale.value,
        seeds=seeds_for_scale(study.seeds, scale),
        version=__version__,
        cells=_run_keys(specs, out),
    )
    filters = _merge_filters(out, manifest, only.strip())
    write_record(out / MANIFEST_NAME, manifest.model_copy(update={"only": filters}))


def write_comparison_manifest(
    command: Sequence[str], title: str, outcomes: Mapping[GridKey, RunOutcome], out: Path
) -> None:
    """Write study.json and errors.json of a comparison. They replace those of earlier comparisons in the folder."""
    outcomes_by_split = [
        replace(outcome, spec=_with_split_row(outcome.spec, point))
        for (point, _, _), outcome in outcomes.items()
    ]
    manifest = StudyManifest(
        command=[*command],
        title=title,
        seeds=list(dict.fromkeys(seed for _, _, seed in outcomes)),
        version=__version__,
        cells=_run_keys((outcome.spec for outcome in outcomes_by_split), out),
    )
    write_record(out / MANIFEST_NAME, manifest)
    errors = {
        manifest.cells[_relative_folder(out, o.spec)].key: o.error for o in outcomes_by_split if o.error
    }
    write_text(out / ERRORS_NAME, dump_json(errors, indent=2) + "\n")


def _with_split_row(spec: RunSpec, point: str) -> RunSpec:
    """Return the run in a row that also names the split, because a folder may get runs of several splits."""
    data = (spec.experiment.dataset.name, spec.experiment.split.name)
    return replace(spec, row=", ".join([*data, point] if point else data))


def _merge_filters(out: Path, manifest: StudyManifest, only: str) -> list[str]:
    """Return the filters of this and of earlier commands; empty if one of them requested the whole study."""
    try:
        previous = read_study_manifest(out / MANIFEST_NAME)
    except CelmError:
        previous = None
    if previous is None or previous.command != manifest.command:
        return [only] if only else []
    return list(dict.fromkeys([*previous.only, only])) if previous.only and only else []


def _run_keys(specs: Iterable[RunSpec], out: Path) -> dict[str, RunKey]:
    return {
        _relative_folder(out, spec): RunKey(row=spec.row, method=spec.method, seed=spec.experiment.run.seed)
        for spec in specs
    }


def _relative_folder(out: Path, spec: RunSpec) -> str:
    return spec.folder.relative_to(out).as_posix()


# --- errors.json --------------------------------------------------------------------------------------------


def save_errors(path: Path, errors: Mapping[str, str], current_names: Collection[str]) -> None:
    """Write the errors, and keep those of earlier commands about runs that are not in `current_names`."""
    try:
        previous = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        previous = {}
    previous_items = previous.items() if isinstance(previous, dict) else ()
    earlier = {name: text for name, text in previous_items if name not in current_names}
    write_text(path, dump_json({**earlier, **errors}, indent=2) + "\n")
