"""Send a run to dashboards: TensorBoard, MLflow, Weights & Biases. The run folder remains the record.

    KIND:DESTINATION      such as tensorboard:logs, mlflow:mlruns, mlflow:http://server:5000, wandb:logs

Every round logs accuracy and each client's weight and score; the end logs summary and settings. If a logger fails,
celm warns once and continues without it.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from celm.base.errors import CelmError, suggest_name
from celm.runs.run import Run

Scalar = str | bool | int | float
LOGGER_PACKAGES = {"tensorboard": "tensorboard", "mlflow": "mlflow", "wandb": "wandb"}
"""Kind to the package it needs. The kind is also the name of its module here and of the extra that installs it."""
_ROUND_METRICS = ("accuracy", "balanced_accuracy", "rare_class_accuracy")
_SUMMARY_METRICS = (*_ROUND_METRICS, "seconds")


class Logger(Protocol):
    """A dashboard. `open_logger(destination, folder, last_round)` in the module of its kind returns one."""

    def log_round(self, round_number: int, metrics: Mapping[str, float]) -> None: ...

    def log_summary(self, summary: Mapping[str, float], settings: Mapping[str, Scalar]) -> None: ...

    def close(self) -> None: ...


class LogTarget(NamedTuple):
    """A dashboard to log to."""

    kind: str
    destination: str


def parse_target(text: str) -> LogTarget:
    """Parse KIND:DESTINATION and check that the package of the kind is installed.

    >>> parse_target("tensorboard:logs")
    LogTarget(kind='tensorboard', destination='logs')
    """
    kind, _, destination = text.partition(":")
    if kind not in LOGGER_PACKAGES:
        raise CelmError(f"--log: unknown logger '{kind}'", suggest_name(kind, LOGGER_PACKAGES))
    if not destination:
        raise CelmError(f"--log: '{text}' has no destination", f"for example {kind}:logs")
    if find_spec(LOGGER_PACKAGES[kind]) is None:
        raise CelmError(
            f"--log: package not installed: {LOGGER_PACKAGES[kind]}", f"pip install 'celm[{kind}]'"
        )
    return LogTarget(kind, destination)


class RunTracker:
    """The loggers of one run. `last_round` is the last round that they already have."""

    def __init__(
        self, targets: Sequence[LogTarget], folder: Path, warn: Callable[[str], None], last_round: int = 0
    ) -> None:
        self._warn = warn
        self._loggers: dict[LogTarget, Logger] = {}
        for target in targets:
            with self._drop_on_failure(target):
                module = import_module(f"{__name__}.{target.kind}")
                self._loggers[target] = module.open_logger(target.destination, folder.resolve(), last_round)

    def log_round(self, record: Mapping[str, Any]) -> None:
        """Log the record of a round."""
        for target, logger in list(self._loggers.items()):
            with self._drop_on_failure(target):
                logger.log_round(record["round"], round_metrics(record))

    def log_summary(self, run: Run) -> None:
        """Log the summary and the settings of a finished run."""
        for target, logger in list(self._loggers.items()):
            with self._drop_on_failure(target):
                logger.log_summary(summary_metrics(run), flat_settings(run))

    def close(self) -> None:
        """Close all loggers."""
        for target, logger in list(self._loggers.items()):
            with self._drop_on_failure(target):
                logger.close()

    @contextmanager
    def _drop_on_failure(self, target: LogTarget) -> Iterator[None]:
        """Turn any error of a logger into a warning, and stop logging to it."""
        try:
            yield
        except Exception as error:  # A dashboard's package may raise anything; the run must continue.
            self._loggers.pop(target, None)
            self._warn(f"logging to {target.kind} failed and is disabled: {type(error).__name__}: {error}")


def track_finished_run(run: Run, targets: Sequence[LogTarget], warn: Callable[[str], None]) -> None:
    """Log a finished run from its first round to its summary."""
    with closing(RunTracker(targets, run.folder, warn)) as tracker:
        for record in run.rounds:
            tracker.log_round(record)
        tracker.log_summary(run)


def round_metrics(record: Mapping[str, Any]) -> dict[str, float]:
    """Return the metrics of a round by name, such as `accuracy` and `weight/client-0`."""
    metrics = {name: record.get(name) for name in _ROUND_METRICS}
    for prefix, by_client in (("weight", record["client_weights"]), ("score", record["scores"])):
        metrics |= {f"{prefix}/{metric_name(client)}": value for client, value in (by_client or {}).items()}
    return {name: float(value) for name, value in metrics.items() if value is not None}


def summary_metrics(run: Run) -> dict[str, float]:
    """Return the final metrics and weights by name, such as `end/accuracy`."""
    metrics = {f"end/{name}": run.metrics[name] for name in _SUMMARY_METRICS}
    metrics |= {f"end/weight/{metric_name(client)}": weight for client, weight in run.weights.items()}
    return {name: float(value) for name, value in metrics.items() if value is not None}


def flat_settings(run: Run) -> dict[str, Scalar]:
    """Return every setting by its full name, such as `run.rounds`."""
    flat: dict[str, Any] = {}
    for table, values in run.experiment.to_dict().items():
        if isinstance(values, dict):
            flat |= {f"{table}.{key}": value for key, value in values.items()}
        else:
            flat[table] = values
    return {name: value if isinstance(value, Scalar) else str(value) for name, value in flat.items()}


def run_id(folder: Path) -> str:
    """Return an id by which dashboards recognise a resumed run."""
    return hashlib.sha256(str(folder).encode()).hexdigest()[:16]


def metric_name(client: str) -> str:
    """Return the client's name in characters that every dashboard accepts. A changed name gets a digest.

    >>> metric_name("client-0"), metric_name("St. Mary's")
    ('client-0', 'St. Mary_s-e778')
    """
    cleaned = re.sub(r"[^A-Za-z0-9_. -]", "_", client)
    return cleaned if cleaned == client else f"{cleaned}-{hashlib.sha256(client.encode()).hexdigest()[:4]}"
