"""`celm.study`: a study from Python. The command line calls the same functions."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from celm.base.errors import CelmError, suggest_name
from celm.experiment.objects import given_objects
from celm.study.grid_result import Study
from celm.study.local_pool import InThisProcess, ProcessPool
from celm.study.plan import plan_runs
from celm.study.scales import Scale
from celm.study.scheduler import ProgressCallback, run_all
from celm.study.spec import load_study
from celm.study.study_folder import StudyFolder


def study(
    name: str | os.PathLike[str],
    *,
    scale: str = "paper",
    only: str = "",
    out: str | os.PathLike[str] | None = None,
    workers: int | None = None,
    watch: ProgressCallback | None = None,
) -> Study:
    """Run what is missing of a study, and return it as an object.

    Args:
        name: a built-in study (`celm list studies`), or the `.toml` file of your own.
        scale: `paper`, `quick` (real data, fewer rounds) or `smoke` (seconds).
        only: a part of the study, such as `dataset=fashion_mnist split=pls`.
        out: the folder; by default `studies/NAME-SCALE`.
        workers: number of runs at a time; by default one per core.
        watch: called with the progress, at short intervals.
    """
    if scale not in list(Scale):
        raise CelmError(f"unknown scale '{scale}'", suggest_name(scale, Scale))
    spec, study_scale = load_study(os.fspath(name)), Scale(scale)
    folder = Path(out) if out is not None else Path("studies") / f"{spec.name}-{scale}"
    specs = plan_runs(spec, study_scale, folder, only)
    study_folder = StudyFolder(spec, os.fspath(name), study_scale, folder, only, specs)
    callback = study_folder.autosave(watch or (lambda progress: None))
    has_objects = any(given_objects(spec.experiment) for spec in specs.values())  # registered in this process
    pool = InThisProcess if has_objects else lambda: ProcessPool(workers)
    results = run_all(list(specs.values()), pool, callback)
    output = study_folder.write(dict(zip(specs, results, strict=True)))
    raise_study_failures(output.failed, len(specs), "failed")
    return Study(folder)


def raise_study_failures(errors: Mapping[str, str], runs: int, outcome: str) -> None:
    """Raise an error that names the first failed run, if there is one."""
    if errors:
        label, error = next(iter(errors.items()))
        raise CelmError(f"{len(errors)} of {runs} runs {outcome}, the first {label}: {error}")
