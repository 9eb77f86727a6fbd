"""A run in the MLflow experiment `celm`: in a local folder, or wherever a tracking URI says."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from pathlib import Path

from mlflow import MlflowClient
from mlflow.entities import Metric, Param

from celm.report.loggers import Scalar, identity

EXPERIMENT = "celm"
AT_ONCE = 100
"""What MLflow takes in one call."""


class Mlflow:
    def __init__(self, uri: str, folder: Path) -> None:
        self.client = MlflowClient(tracking_uri=uri)
        known = self.client.get_experiment_by_name(EXPERIMENT)
        experiment = known.experiment_id if known else self.client.create_experiment(EXPERIMENT)
        # A run that is resumed goes on in its entry.
        there = self.client.search_runs([experiment], f"tags.celm = '{identity(folder)}'", max_results=1)
        tags = {"celm": identity(folder), "folder": str(folder)}
        entry = there[0] if there else self.client.create_run(experiment, tags=tags, run_name=folder.name)
        self.run = entry.info.run_id

    def round(self, number: int, values: Mapping[str, float]) -> None:
        now = round(1000 * time.time())
        metrics = [Metric(name, value, now, number) for name, value in values.items()]
        for i in range(0, len(metrics), AT_ONCE):
            self.client.log_batch(self.run, metrics=metrics[i : i + AT_ONCE])

    def end(self, summary: Mapping[str, float], settings: Mapping[str, Scalar]) -> None:
        self.round(0, summary)
        params = [Param(name, str(value)) for name, value in settings.items()]
        for i in range(0, len(params), AT_ONCE):
            self.client.log_batch(self.run, params=params[i : i + AT_ONCE])
        self.client.set_terminated(self.run)

    def close(self) -> None:
        pass


def open(place: str, folder: Path, after: int) -> Mlflow:
    if "://" in place:
        return Mlflow(place, folder)
    os.environ.setdefault("MLFLOW_ALLOW_FILE_STORE", "true")  # else newer versions ask for a database
    return Mlflow(Path(place).resolve().as_uri(), folder)
