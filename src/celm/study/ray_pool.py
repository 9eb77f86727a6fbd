"""Cells on a Ray cluster. A cell's folder travels there as bytes and comes home again, so no file system is shared.

A cell is locked at home for as long as it is away. Its folder comes home every few seconds as it then is, so that a
worker that is killed loses little: the cell is sent again, and goes on from there. Every node of the cluster needs
this version of celm and the datasets.
"""

from __future__ import annotations

import logging
import os
import socket
import sys
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import redirect_stdout
from importlib.metadata import version
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Event
from typing import Any

from celm.base.errors import CelmError
from celm.federation.folder import Folder
from celm.federation.parcel import pack, unpack
from celm.study.grid import POLL_SECONDS, Cell, held

HOME_EVERY_SECONDS = 10.0
ATTEMPTS = 3
"""How often a cell is sent before it counts as failed."""


class RayPool:
    def __init__(self, size: int | None = None, address: str | None = None) -> None:
        # Ray tells of workers that died on stdout, which is for results.
        self.stdout = redirect_stdout(sys.stderr)
        self.ray = joined(address)
        self.stdout.__enter__()
        self.size = size or max(1, int(self.ray.cluster_resources().get("CPU", 1)))
        self.threads = ThreadPoolExecutor(self.size)
        self.closing = Event()

    def submit(self, cell: Cell) -> Future[None]:
        return self.threads.submit(self.run, cell)

    def close(self) -> None:
        self.closing.set()
        self.threads.shutdown()
        self.ray.shutdown()
        self.stdout.__exit__(None, None, None)

    def run(self, cell: Cell) -> None:
        with held(cell) as folder:
            folder.sweep()
            try:
                self.send(cell, folder)
            except CelmError:
                if folder.fresh and not folder.records():
                    folder.discard()  # nothing was done yet: leave nothing behind
                raise

    def send(self, cell: Cell, folder: Folder) -> None:
        from ray.exceptions import RayError, RayTaskError

        for attempt in range(1, ATTEMPTS + 1):
            try:
                return self.follow(cell, folder)
            except RayTaskError as error:
                raise error.cause from error
            except RayError as error:  # the worker or its node is gone
                if attempt == ATTEMPTS:
                    reason = str(error).splitlines()[0]
                    raise CelmError(f"its Ray worker was lost {ATTEMPTS} times: {reason}") from error
        return None

    def follow(self, cell: Cell, folder: Folder) -> None:
        """Send the cell, and take in its folder whenever it comes home."""
        task = self.ray.remote(num_cpus=cell.experiment.run.threads, num_returns="streaming", max_retries=0)
        parcels = task(work_away).remote(pack(folder), version("celm"))
        while True:
            ready, _ = self.ray.wait([parcels], timeout=POLL_SECONDS)
            if self.closing.is_set():
                self.ray.cancel(parcels, force=True)
                return
            if ready:
                try:
                    unpack(self.ray.get(next(parcels)), folder)
                except StopIteration:
                    return


def joined(address: str | None) -> Any:
    """Ray, attached to the cluster at `address`, or as Ray itself finds or starts one."""
    # Nothing is reported to Ray's makers, and a run that computes on a GPU may see it.
    for name in ("RAY_USAGE_STATS_ENABLED", "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO"):
        os.environ.setdefault(name, "0")
    try:
        import ray
    except ImportError as error:
        raise CelmError("--pool ray needs Ray", "pip install 'celm[ray]'") from error
    if address:
        check_address(address)
    try:
        ray.init(address=address, log_to_driver=False, logging_level=logging.ERROR)
    except (ConnectionError, ValueError, RuntimeError) as error:
        where = f" at {address}" if address else ""
        raise CelmError(f"cannot reach a Ray cluster{where}: {str(error).splitlines()[0]}") from error
    return ray


def check_address(address: str) -> None:
    """What Ray would try for minutes, tried for seconds."""
    if "://" in address:
        raise CelmError(
            f"--address: {address} is a Ray Client", "run celm on a node, with --address HOST:PORT or auto"
        )
    host, _, port = address.rpartition(":")
    if host and port.isdigit():
        try:
            socket.create_connection((host, int(port)), timeout=5).close()
        except (OSError, OverflowError) as error:
            raise CelmError(f"cannot reach a Ray cluster at {address}: {error}") from error


def work_away(files: dict[str, bytes], release: str) -> Iterator[dict[str, bytes]]:
    """On the cluster: go on with the run of these files; its folder every few seconds, and at the end."""
    from celm.engines.launch import carry_out

    if version("celm") != release:
        raise CelmError(f"a node of the cluster has celm {version('celm')}, not {release}")
    with TemporaryDirectory(prefix="celm-") as place, ThreadPoolExecutor(1) as thread:
        folder = Folder(Path(place))
        unpack(files, folder)
        work = thread.submit(carry_out, folder, workers=0)
        over = False
        while not over:
            over = bool(wait([work], timeout=HOME_EVERY_SECONDS).done)
            yield pack(folder)
        work.result()
