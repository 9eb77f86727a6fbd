"""`celm run --engine flower`: the same run folder, with the clients on nodes of Flower's simulation."""

from __future__ import annotations

import logging
import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from flwr.app import Context
from flwr.server.superlink.fleet.vce.backend.backend import BackendConfig
from flwr.serverapp import Grid, ServerApp
from flwr.simulation import run_simulation

from celm.base.errors import CelmError
from celm.engines import launch
from celm.engines.choice import available_cores
from celm.federation.folder import Folder
from celm.federation.run import Run
from celm.flower.apps import Nodes, client
from celm.method.probe import ProbeFunction
from celm.models.factory import one_line

DISCREET = {
    "FLWR_TELEMETRY_ENABLED": "0",
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
}
"""Unless the user says otherwise, nothing is reported to anybody, and Ray gives no tips."""


def carry_out(
    folder: Folder,
    watch: launch.Watch | None = None,
    workers: int | None = None,
    prober: ProbeFunction | None = None,
) -> Run:
    """As the local engine's: do what is left of the run in `folder`, with as many virtual nodes as clients."""
    if folder.result() is not None:
        return Run.read(folder)
    for name, value in DISCREET.items():
        os.environ.setdefault(name, value)
    finished: list[Run] = []
    failed: list[BaseException] = []
    stopped = threading.Event()
    app = ServerApp()

    @app.main()
    def play(grid: Grid, context: Context) -> None:
        try:
            finished.append(
                launch.carry_out(
                    folder, watch, workers, lambda federation, _: Nodes(grid, federation, stopped), prober
                )
            )
        except Exception as error:  # shown as the command line shows its errors, not as Flower does
            failed.append(error)

    cores = available_cores() if workers is None else max(1, workers)
    resources: BackendConfig = {
        "init_args": {"address": "local", "num_cpus": cores},  # never one that runs here already
        "client_resources": {"num_cpus": 1, "num_gpus": 0.0},
    }
    with quiet(), asked_to_stop(stopped):
        try:
            run_simulation(app, client, folder.settings().split.clients, backend_config=resources)
        except RuntimeError as error:
            raise CelmError(f"Flower's simulation failed: {one_line(error.__cause__ or error)}") from error
        finally:
            stopped.set()
    if failed:
        raise failed[0]
    if not finished:
        raise CelmError("Flower's simulation ended before the run did")
    return finished[0]


@contextmanager
def asked_to_stop(stopped: threading.Event) -> Iterator[None]:
    """A first interrupt asks the server to stop and is passed on at the end of the simulation; a second ends it now.

    Raised inside Flower's simulation, an interrupt takes the nodes from under messages on their way to them: a thread
    then waits for its node for ever, and the process never ends.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.getsignal(signal.SIGINT)
    asked = threading.Event()

    def ask(number: int, frame: FrameType | None) -> None:
        asked.set()
        stopped.set()
        signal.signal(signal.SIGINT, before)

    signal.signal(signal.SIGINT, ask)
    try:
        yield
    except CelmError:
        if not asked.is_set():
            raise
    finally:
        signal.signal(signal.SIGINT, before)
    if asked.is_set():
        raise KeyboardInterrupt


@contextmanager
def quiet() -> Iterator[None]:
    """Only errors of Flower's: the command line has its own words for the rest."""
    logger = logging.getLogger("flwr")
    before = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(before)
