"""Create and write a run folder. `celm.records.run_files` lists its files and reads them."""

from __future__ import annotations

from contextlib import suppress
from itertools import count
from pathlib import Path

from celm.base.errors import CelmError
from celm.base.files import os_errors_as_celm_error, write_text
from celm.experiment.config import Experiment
from celm.experiment.differences import data_parts, distinguishing_parts, file_name, method_parts
from celm.experiment.objects import describe_objects, missing_objects, resume_call
from celm.models import require_confirmed_factory
from celm.records.checksums import files_sha256, values_sha256
from celm.records.run_files import RunFiles
from celm.records.run_records import Environment, EnvironmentStart, RunResult
from celm.records.schema import write_record
from celm.runs.checkpointed_folder import LOCK_FILE, CheckpointedFolder


class RunFolder(CheckpointedFolder, RunFiles):
    """A run folder that this process may write."""

    def __init__(self, path: Path, is_new: bool = False, created_directory: bool = False) -> None:
        super().__init__(path)
        self.is_new = is_new
        """Whether this process just created the run; removing it again then does not lose data."""
        self.created_directory = created_directory
        """Whether the directory itself was created for the run."""
        self._settings: Experiment | None = None

    @classmethod
    def create(cls, path: Path, experiment: Experiment, owns_directory: bool = False) -> RunFolder:
        """Create a run folder with its settings.

        `owns_directory` means that the caller has just created the directory for this run.
        """
        with os_errors_as_celm_error(path, "create"):
            created_directory = not path.exists()
            path.mkdir(parents=True, exist_ok=True)
            is_occupied = any(
                child.name != LOCK_FILE and not child.name.endswith(".part") for child in path.iterdir()
            )
        if is_occupied:
            has_run = (path / "settings.toml").exists()
            hint = f"resume it: celm run --resume {path}" if has_run else "choose another folder"
            raise CelmError(f"{path} is not empty", hint)
        folder = cls(path, is_new=True, created_directory=created_directory or owns_directory)
        try:
            folder.write_settings(experiment)
        except BaseException:
            folder.remove_if_unused()
            raise
        return folder

    def check_model(self, confirmed_model: str | None) -> None:
        """Refuse to resume an untrusted folder unless the caller names its model factory, which is code."""
        if confirmed_model is not None or self.result() is None:
            require_confirmed_factory(self.settings().model.name, confirmed_model, self.path)
        if self.result() is None and (missing := missing_objects(self.settings())):
            raise CelmError(
                f"{self.path} needs the objects that it began with: {describe_objects(missing)}",
                f"in Python: {resume_call(self.path, missing)}",
            )

    def remove_if_unused(self) -> None:
        """Remove a folder that contains only settings, because these settings are invalid."""
        for name in ("settings.toml", LOCK_FILE):
            (self.path / name).unlink(missing_ok=True)
        if self.created_directory:
            with suppress(OSError):
                self.path.rmdir()

    def write_settings(self, experiment: Experiment) -> None:
        write_text(self.path / "settings.toml", experiment.to_toml())
        self._settings = experiment

    def settings(self) -> Experiment:
        """Return the settings of the run; the file is read once."""
        if self._settings is None:
            self._settings = super().settings()
        return self._settings

    def append_environment(self, start: EnvironmentStart) -> None:
        """Add versions and host of a start of the run to environment.json."""
        write_record(self.path / "environment.json", Environment(starts=[*self.environments(), start]))

    def write_result(self, result: RunResult) -> None:
        """Write result.json with the checksums of the run, which marks the run as finished."""
        result = result.model_copy(update={"files": files_sha256(self.path)})
        sha256 = values_sha256(result.model_dump())
        write_record(self.path / "result.json", result.model_copy(update={"sha256": sha256}))


def default_run_path(experiment: Experiment) -> Path:
    """Create the folder `runs/DATASET-SPLIT-METHOD-...-seedS` and return it; append a number if it exists.

    Settings that differ from the defaults are part of the name, as in `digits-dirichlet-0.05-celm-batch-32-seed42`.
    It is created here so that two runs that start together get different folders.
    """
    parts = [*data_parts(experiment), experiment.method, *method_parts(experiment)]
    base = Path("runs") / file_name([*parts, *distinguishing_parts(experiment), f"seed{experiment.run.seed}"])
    candidates = (base if i == 1 else base.with_name(f"{base.name}-{i}") for i in count(1))
    return next(path for path in candidates if _try_mkdir(path))


def _try_mkdir(path: Path) -> bool:
    with os_errors_as_celm_error(path, "create"):
        try:
            path.mkdir(parents=True)
        except FileExistsError:
            return False
    return True
