"""Cells on a Ray cluster. A cell's folder travels there as bytes and comes home again, so no file system is shared.

A cell is locked at home for as long as it is away. Its folder comes home every few seconds as it then is, so that a
worker that is killed loses little: the cell is sent again, and goes on from there. Every node of the cluster needs
this version of celm and the datasets.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import redirect_stdout
from importlib.metadata import version
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Event

from celm.base.errors import CelmError
from celm.engines.ray_cluster import ATTEMPTS, Cluster, check_release, pass_on
from celm.federation.folder import Folder
from celm.federation.parcel import pack, unpack
from celm.study.grid import POLL_SECONDS, Cell, held

HOME_EVERY_SECONDS = 10.0


class RayPool:
    def __init__(self, size: int | None = None, address: str | None = None) -> None:
        # Ray tells of workers that died on stdout, which is for results.
        self.stdout = redirect_stdout(sys.stderr)
        self.cluster = Cluster("--pool ray", address)
        self.stdout.__enter__()
        self.size = size or self.cluster.cpus
        self.threads = ThreadPoolExecutor(self.size)
        self.closing = Event()

    def submit(self, cell: Cell) -> Future[None]:
        return self.threads.submit(self.run, cell)

    def close(self) -> None:
        self.closing.set()
        self.threads.shutdown()
        self.cluster.close()
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
        from ray.exceptions import RayError

        for attempt in range(1, ATTEMPTS + 1):
            try:
                return self.follow(cell, folder)
            except RayError as error:
                pass_on(error, attempt)
        return None

    def follow(self, cell: Cell, folder: Folder) -> None:
        """Send the cell, and take in its folder whenever it comes home."""
        ray = self.cluster.ray
        task = self.cluster.task(work_away, cell.experiment.run.threads, num_returns="streaming")
        parcels = task.remote(pack(folder), version("celm"))
        while True:
            ready, _ = ray.wait([parcels], timeout=POLL_SECONDS)
            if self.closing.is_set():
                ray.cancel(parcels, force=True)
                return
            if ready:
                try:
                    unpack(ray.get(next(parcels)), folder)
                except StopIteration:
                    return


def work_away(files: dict[str, bytes], release: str) -> Iterator[dict[str, bytes]]:
    """On the cluster: go on with the run of these files; its folder every few seconds, and at the end."""
    from celm.engines.launch import carry_out

    check_release(release)
    with TemporaryDirectory(prefix="celm-") as place, ThreadPoolExecutor(1) as thread:
        folder = Folder(Path(place))
        unpack(files, folder)
        work = thread.submit(carry_out, folder, workers=0)
        over = False
        while not over:
            over = bool(wait([work], timeout=HOME_EVERY_SECONDS).done)
            yield pack(folder)
        work.result()
