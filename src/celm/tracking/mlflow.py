"""Log a run to the MLflow experiment `celm`, in a local folder or at a tracking URI."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from pathlib import Path

from mlflow import MlflowClient
from mlflow.entities import Metric, Param

from celm.tracking import Scalar, run_id

_EXPERIMENT = "celm"
_MAX_LOG_BATCH = 100
"""MLflow's limit per call."""


class MlflowLogger:
    """A run of the experiment. A resumed run continues the same MLflow run."""

    def __init__(self, uri: str, folder: Path) -> None:
        self._client = MlflowClient(tracking_uri=uri)
        experiment = self._client.get_experiment_by_name(_EXPERIMENT)
        experiment_id = (
            experiment.experiment_id if experiment else self._client.create_experiment(_EXPERIMENT)
        )
        tags = {"celm": run_id(folder), "folder": str(folder)}
        matching_runs = self._client.search_runs(
            [experiment_id], f"tags.celm = '{tags['celm']}'", max_results=1
        )
        mlflow_run = (
            matching_runs[0]
            if matching_runs
            else self._client.create_run(experiment_id, tags=tags, run_name=folder.name)
        )
        self._run_id = mlflow_run.info.run_id

    def log_round(self, round_number: int, metrics: Mapping[str, float]) -> None:
        now = round(1000 * time.time())
        entries = [Metric(name, value, now, round_number) for name, value in metrics.items()]
        for i in range(0, len(entries), _MAX_LOG_BATCH):
            self._client.log_batch(self._run_id, metrics=entries[i : i + _MAX_LOG_BATCH])

    def log_summary(self, summary: Mapping[str, float], settings: Mapping[str, Scalar]) -> None:
        self.log_round(0, summary)
        params = [Param(name, str(value)) for name, value in settings.items()]
        for i in range(0, len(params), _MAX_LOG_BATCH):
            self._client.log_batch(self._run_id, params=params[i : i + _MAX_LOG_BATCH])
        self._client.set_terminated(self._run_id)

    def close(self) -> None:
        pass


def open_logger(destination: str, folder: Path, last_round: int) -> MlflowLogger:
    """Open the logger of the run in `folder`. `destination` is a folder or a tracking URI."""
    if "://" in destination:
        return MlflowLogger(destination, folder)
    # Newer versions of MLflow refuse a folder without this variable.
    os.environ.setdefault("MLFLOW_ALLOW_FILE_STORE", "true")
    return MlflowLogger(Path(destination).resolve().as_uri(), folder)
