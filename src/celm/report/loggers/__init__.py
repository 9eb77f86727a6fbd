"""A run as dashboards show it: TensorBoard, MLflow, Weights & Biases. For looking on; the record is the run folder.

    KIND:PLACE      as in tensorboard:logs, mlflow:mlruns, mlflow:http://server:5000, wandb:logs

Every round: accuracy, each client's weight and score. At the end: the summary and the settings. A logger that fails
is dropped with a warning, and the run goes on.
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

from celm.base.errors import CelmError, nearest
from celm.federation.run import Run

Scalar = str | bool | int | float
PACKAGES = {"tensorboard": "tensorboard", "mlflow": "mlflow", "wandb": "wandb"}
"""Kind (the module here, and the extra that installs it) to the package it needs."""
SUMMARY = ("accuracy", "balanced_accuracy", "rare_class_accuracy", "seconds")


class Logger(Protocol):
    """`open(place, folder, after)` in a kind's module makes one."""

    def round(self, number: int, values: Mapping[str, float]) -> None: ...

    def end(self, summary: Mapping[str, float], settings: Mapping[str, Scalar]) -> None: ...

    def close(self) -> None: ...


class Target(NamedTuple):
    kind: str
    place: str


def parse(text: str) -> Target:
    """
    >>> parse("tensorboard:logs")
    Target(kind='tensorboard', place='logs')
    """
    kind, _, place = text.partition(":")
    if kind not in PACKAGES:
        raise CelmError(f"--log: unknown logger '{kind}'", nearest(kind, PACKAGES))
    if not place:
        raise CelmError(f"--log: '{text}' does not say where to", f"as in {kind}:logs")
    if find_spec(PACKAGES[kind]) is None:
        raise CelmError(f"--log {kind} needs a package", f"pip install 'celm[{kind}]'")
    return Target(kind, place)


class Log:
    """One run, told to some loggers; `after` is the last round they were told of before."""

    def __init__(
        self, targets: Sequence[Target], folder: Path, warn: Callable[[str], None], after: int = 0
    ) -> None:
        self.warn = warn
        self.loggers: dict[Target, Logger] = {}
        for target in targets:
            with self.guarded(target):
                kind = import_module(f"{__name__}.{target.kind}")
                self.loggers[target] = kind.open(target.place, folder.resolve(), after)

    def round(self, record: Mapping[str, Any]) -> None:
        for target, logger in list(self.loggers.items()):
            with self.guarded(target):
                logger.round(record["round"], values(record))

    def end(self, run: Run) -> None:
        for target, logger in list(self.loggers.items()):
            with self.guarded(target):
                logger.end(summary(run), settings(run))

    def close(self) -> None:
        for target, logger in list(self.loggers.items()):
            with self.guarded(target):
                logger.close()

    @contextmanager
    def guarded(self, target: Target) -> Iterator[None]:
        try:
            yield
        except Exception as error:  # whatever a dashboard's package raises, the run must not end by it
            self.loggers.pop(target, None)
            self.warn(f"logging to {target.kind} failed and is given up: {type(error).__name__}: {error}")


def tell(run: Run, targets: Sequence[Target], warn: Callable[[str], None]) -> None:
    """A finished run at once, from its first round."""
    with closing(Log(targets, run.folder, warn)) as log:
        for record in run.rounds:
            log.round(record)
        log.end(run)


def values(record: Mapping[str, Any]) -> dict[str, float]:
    """What a round is logged as."""
    found = {name: record.get(name) for name in SUMMARY[:3]}
    for what, by_client in (("weight", record["standing"]), ("score", record["scores"])):
        found |= {f"{what}/{safe(client)}": value for client, value in (by_client or {}).items()}
    return {name: float(value) for name, value in found.items() if value is not None}


def summary(run: Run) -> dict[str, float]:
    found = {f"end/{name}": run.metrics[name] for name in SUMMARY}
    found |= {f"end/weight/{safe(client)}": weight for client, weight in run.weights.items()}
    return {name: float(value) for name, value in found.items() if value is not None}


def settings(run: Run) -> dict[str, Scalar]:
    """Every setting by its whole name."""
    tables = run.experiment.tables()
    flat = {f"{table}.{key}": value for table, keys in tables.items() if isinstance(keys, dict)
            for key, value in keys.items()}  # fmt: skip
    flat |= {table: keys for table, keys in tables.items() if not isinstance(keys, dict)}
    return {name: value if isinstance(value, Scalar) else str(value) for name, value in flat.items()}


def identity(folder: Path) -> str:
    """By which a run that is resumed is known again."""
    return hashlib.sha256(str(folder).encode()).hexdigest()[:16]


def safe(client: str) -> str:
    """A client's name in letters that every dashboard takes; one that is changed is marked, to stay its own.

    >>> safe("client-0"), safe("St. Mary's")
    ('client-0', 'St. Mary_s-e778')
    """
    plain = re.sub(r"[^A-Za-z0-9_. -]", "_", client)
    return plain if plain == client else f"{plain}-{hashlib.sha256(client.encode()).hexdigest()[:4]}"
