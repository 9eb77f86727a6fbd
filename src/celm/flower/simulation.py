"""`celm run --engine flower`: run the clients on nodes of Flower's simulation, in an ordinary run folder."""

from __future__ import annotations

import logging
import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp
from flwr.simulation import run_simulation

from celm.base.errors import CelmError
from celm.base.text import format_exception
from celm.core.probe import ProbeFunction
from celm.engines.select import available_cores
from celm.federation.build import ResolvedExperiment
from celm.flower.experiment_apps import FlowerEngine, client
from celm.runs import runner
from celm.runs.run import Run
from celm.runs.run_folder import RunFolder

_NO_TELEMETRY = {
    "FLWR_TELEMETRY_ENABLED": "0",
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
}
"""Switch telemetry and Ray's tips off, unless the user set these variables."""


def run_in_simulation(
    folder: RunFolder,
    watch: runner.RoundCallback | None = None,
    workers: int | None = None,
    probe_fn: ProbeFunction | None = None,
    resolved: ResolvedExperiment | None = None,
) -> Run:
    """Finish the run in `folder` with as many virtual nodes as clients."""
    if folder.result() is not None:
        return Run.read(folder)
    for name, value in _NO_TELEMETRY.items():
        os.environ.setdefault(name, value)
    finished: list[Run] = []
    failed: list[BaseException] = []
    stopped = threading.Event()
    app = ServerApp()

    @app.main()
    def run_server(grid: Grid, context: Context) -> None:
        try:
            finished.append(
                runner.continue_run(
                    folder,
                    watch,
                    workers,
                    lambda federation, _: FlowerEngine(grid, federation, stopped),
                    probe_fn,
                    resolved,
                )
            )
        except Exception as error:  # the command line shows it, not Flower
            failed.append(error)

    cores = available_cores() if workers is None else max(1, workers)
    resources: dict[str, dict[str, Any]] = {
        "init_args": {"address": "local", "num_cpus": cores},  # never join a running cluster
        "client_resources": {"num_cpus": 1, "num_gpus": 0.0},
    }
    with _silence_flower(), graceful_interrupt(stopped):
        try:
            run_simulation(app, client, folder.settings().split.clients, backend_config=resources)
        except RuntimeError as error:
            raise CelmError(
                f"Flower's simulation failed: {format_exception(error.__cause__ or error)}"
            ) from error
        finally:
            stopped.set()
    if failed:
        raise failed[0]
    if not finished:
        raise CelmError("Flower's simulation ended before the run did")
    return finished[0]


@contextmanager
def graceful_interrupt(stopped: threading.Event) -> Iterator[None]:
    """Let the first interrupt stop the server and re-raise it after the simulation; a second one ends it at once.

    Flower's simulation must not be interrupted while it sends messages: it would remove the nodes, and a thread would
    wait for them forever.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    previous_handler = signal.getsignal(signal.SIGINT)
    interrupted = threading.Event()

    def request_stop(number: int, frame: FrameType | None) -> None:
        interrupted.set()
        stopped.set()
        signal.signal(signal.SIGINT, previous_handler)

    signal.signal(signal.SIGINT, request_stop)
    try:
        yield
    except CelmError:
        if not interrupted.is_set():
            raise
    finally:
        signal.signal(signal.SIGINT, previous_handler)
    if interrupted.is_set():
        raise KeyboardInterrupt


@contextmanager
def _silence_flower() -> Iterator[None]:
    """Log only Flower's errors: the command line reports the rest."""
    logger = logging.getLogger("flwr")
    previous_level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(previous_level)
