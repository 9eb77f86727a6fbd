"""Run many planned runs at once. A killed study resumes, and several processes may share its folder.

Runs are independent, and each depends on its settings only. So neither their order nor the number of processes matters.
The process that works on a run holds the lock of its folder. A run that another process has locked is waited for at the
end. If that process dies, its lock ends, and the run resumes here from its last round. A run that fails is recorded
with its error, and the others continue.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, BrokenExecutor, Future, wait
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from celm.base.errors import CelmError
from celm.base.files import os_errors_as_celm_error
from celm.base.locking import InUseError
from celm.runs.run_folder import RunFolder
from celm.study.plan import RunSpec
from celm.study.results import RunOutcome, check_planned_folder, existing_outcome, format_error

POLL_SECONDS = 0.5


@dataclass(frozen=True)
class GridProgress:
    """The progress of all runs."""

    specs: Sequence[RunSpec]
    outcomes: Sequence[RunOutcome]
    """Runs that were done at the start come first, then the others in the order in which they ended."""
    running: Sequence[RunSpec]
    locked_elsewhere: Sequence[RunSpec]
    """Runs that other processes have locked."""


ProgressCallback = Callable[[GridProgress], None]
"""Called at short intervals, and at the end."""


class RunPool(Protocol):
    """Executor of runs. A future ends with None, or with the error of its run."""

    size: int
    """Number of runs at a time."""

    def submit(self, spec: RunSpec) -> Future[None]: ...

    def close(self) -> None:
        """Stop all running runs now."""


def run_all(
    specs: Sequence[RunSpec], pool_factory: Callable[[], RunPool], callback: ProgressCallback | None = None
) -> list[RunOutcome]:
    """Finish all runs and return their outcomes in the order of `specs`. The pool is created only if needed."""
    for folder, count in Counter(spec.folder for spec in specs).items():
        if count > 1:
            raise CelmError(f"{count} runs would share the folder {folder}", "give them different names")
    for spec in specs:
        check_planned_folder(spec)
    outcomes = {spec.folder: outcome for spec in specs if (outcome := existing_outcome(spec))}
    pending = [spec for spec in specs if spec.folder not in outcomes]
    if pending:
        with closing(pool_factory()) as pool:
            for parent in dict.fromkeys(spec.folder.parent for spec in pending):
                with os_errors_as_celm_error(parent, "create"):
                    parent.mkdir(parents=True, exist_ok=True)
            outcomes |= _run_pending(specs, outcomes, pending, pool, callback)
    return [outcomes[spec.folder] for spec in specs]


def _run_pending(
    specs: Sequence[RunSpec],
    existing: dict[Path, RunOutcome],
    pending: list[RunSpec],
    pool: RunPool,
    callback: ProgressCallback | None,
) -> dict[Path, RunOutcome]:
    outcomes = dict(existing)
    running: dict[Future[None], RunSpec] = {}
    locked_elsewhere: list[RunSpec] = []
    while True:
        for future in [future for future in running if future.done()]:
            spec = running.pop(future)
            if isinstance(future.exception(), InUseError):
                locked_elsewhere.append(spec)  # another process was faster
            else:
                outcomes[spec.folder] = _outcome_of(spec, future)
        while pending and len(running) < pool.size:
            spec = pending.pop(0)
            try:
                is_locked = RunFolder(spec.folder).is_locked()
            except CelmError as error:  # the lock file cannot be used: an error of this run alone
                outcomes[spec.folder] = RunOutcome(spec, None, str(error))
                continue
            if is_locked:
                locked_elsewhere.append(spec)
            elif outcome := existing_outcome(spec):
                outcomes[spec.folder] = outcome
            else:
                running[pool.submit(spec)] = spec
        if callback:
            callback(GridProgress(specs, list(outcomes.values()), list(running.values()), locked_elsewhere))
        if not running and not locked_elsewhere:
            return outcomes
        if running:
            wait(running, POLL_SECONDS, FIRST_COMPLETED)
        else:
            time.sleep(POLL_SECONDS)
        if len(running) < pool.size:  # only runs that others have locked are left: try again
            pending, locked_elsewhere = locked_elsewhere, []


def _outcome_of(spec: RunSpec, future: Future[None]) -> RunOutcome:
    """Return the outcome of a run whose future is done."""
    error = future.exception()
    if isinstance(error, BrokenExecutor):
        message = "its process ended unexpectedly (if memory ran out, use fewer workers: --workers 1)"
        return RunOutcome(spec, None, message)
    if error is not None:
        return RunOutcome(spec, None, format_error(error))
    return existing_outcome(spec) or RunOutcome(spec, None, "the run ended without a result")


def run_one(spec: RunSpec) -> None:
    """Finish one run in this process."""
    from celm.runs.runner import continue_locked

    with locked_folder(spec) as folder:
        continue_locked(folder, workers=0)


@contextmanager
def locked_folder(spec: RunSpec) -> Iterator[RunFolder]:
    """Lock the run's folder and yield it. The settings of a new run are written under the lock."""
    with os_errors_as_celm_error(spec.folder, "create"):
        spec.folder.mkdir(parents=True, exist_ok=True)
    with RunFolder(spec.folder).lock():
        if (spec.folder / "settings.toml").exists():
            yield RunFolder.open(spec.folder)
        else:
            yield RunFolder.create(spec.folder, spec.experiment, owns_directory=True)
