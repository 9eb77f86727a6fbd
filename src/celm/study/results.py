"""The outcomes of planned runs: results that their folders already contain, and metrics of finished runs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from celm.base.errors import CelmError
from celm.experiment.config import Experiment
from celm.records.run_files import RunFiles
from celm.records.run_records import RunResult
from celm.runs.run import Run
from celm.study.plan import GridKey, RunSpec
from celm.study.run_metrics import compute_metric
from celm.study.spec import StudySpec


@dataclass(frozen=True)
class RunOutcome:
    spec: RunSpec
    result: RunResult | None
    error: str | None = None


MetricsByRun = Mapping[GridKey, Mapping[str, float | None]]
"""Finished run to its metrics."""


# --- folders ------------------------------------------------------------------------------------------------


def check_planned_folder(spec: RunSpec) -> None:
    """Raise CelmError if the folder of a planned run contains a run with other settings."""
    try:
        existing = _existing_settings(spec)
    except CelmError:
        return  # damaged settings are an error of this run alone, which `existing_outcome` reports
    if existing is None:
        return
    existing_tables, planned_tables = existing.to_dict(), spec.experiment.to_dict()
    for tables in (existing_tables, planned_tables):
        tables["run"].pop("workers", None)
    if existing_tables != planned_tables:
        table = next(
            name
            for name in {**existing_tables, **planned_tables}
            if existing_tables.get(name) != planned_tables.get(name)
        )
        raise CelmError(
            f"{spec.folder} contains a run with other settings: table '{table}'", "choose another --out"
        )


def _is_same_experiment(spec: RunSpec) -> bool:
    try:
        check_planned_folder(spec)
    except CelmError:
        return False
    return True


def _existing_settings(spec: RunSpec) -> Experiment | None:
    """Return the settings in the folder; None if the run has not started, or was just removed by another process."""
    try:
        return RunFiles(spec.folder).settings()
    except CelmError:
        if (spec.folder / "settings.toml").exists():
            raise
        return None


def existing_outcome(spec: RunSpec) -> RunOutcome | None:
    """Return the outcome of a run that needs no more work, else None. Damaged files are a failure of this run alone."""
    try:
        _existing_settings(spec)
        result = RunFiles(spec.folder).result()
    except CelmError as error:
        return RunOutcome(spec, None, _with_hint(error, spec))
    return None if result is None else RunOutcome(spec, result)


def count_rounds_done(spec: RunSpec) -> int:
    number = RunFiles(spec.folder).last_round().get("round")
    return max(0, min(spec.rounds, number)) if isinstance(number, int) else 0


def format_error(error: BaseException) -> str:
    return str(error) if isinstance(error, CelmError) else f"{type(error).__name__}: {error}"


def _with_hint(error: BaseException, spec: RunSpec) -> str:
    """Format an error about the files of a run, with a hint unless it has one or is an error of the system."""
    if getattr(error, "hint", None) or isinstance(error.__cause__, OSError):
        return format_error(error)
    return f"{format_error(error)} (delete {spec.folder} to run it again)"


# --- a study ------------------------------------------------------------------------------------------------


def merge_existing(
    study: StudySpec, specs: Mapping[GridKey, RunSpec], outcomes: Mapping[GridKey, RunOutcome]
) -> dict[GridKey, RunOutcome]:
    """Add to `outcomes` those of other runs that the folder contains, in the order of the study.

    A run that failed here may have been finished by another process. A study with ground truth adds only rows and seeds
    of which all runs are done, because the truth needs all coalitions.
    """
    merged = dict(outcomes)
    for key, spec in specs.items():
        failed = key in merged and merged[key].result is None
        if (
            (failed or key not in merged)
            and _is_same_experiment(spec)
            and (existing := existing_outcome(spec))
        ):
            merged[key] = merged[key] if failed and existing.result is None else existing
    missing = {(row, seed) for row, method, seed in specs if (row, method, seed) not in merged}
    return {
        key: merged[key]
        for key in specs
        if key in outcomes or (key in merged and not (study.ground_truth and key[::2] in missing))
    }


def compute_metrics(
    study: StudySpec, outcomes: Mapping[GridKey, RunOutcome], previous: MetricsByRun | None = None
) -> tuple[dict[GridKey, RunOutcome], MetricsByRun]:
    """Return the outcomes, and the metrics of each finished run. Runs in `previous` are not read again.

    A run that cannot be read, or whose metrics cannot be computed, becomes a failed run.
    """
    row_metrics = {row.label: row.metrics or study.metrics for row in study.rows}
    updated_outcomes = dict(outcomes)
    metrics_by_run: dict[GridKey, Mapping[str, float | None]] = {}
    for key, outcome in outcomes.items():
        row, method, _ = key
        if outcome.result is None or method not in study.methods:
            continue
        if previous and key in previous:
            metrics_by_run[key] = previous[key]
            continue
        try:
            run = Run.read(RunFiles.open(outcome.spec.folder), check_model=False)
            metrics_by_run[key] = {metric: compute_metric(metric, run) for metric in row_metrics[row]}
        except Exception as error:  # a damaged file may raise anything
            updated_outcomes[key] = replace(outcome, result=None, error=_with_hint(error, outcome.spec))
    return updated_outcomes, metrics_by_run
