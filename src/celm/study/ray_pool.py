"""Runs on a Ray cluster. The run folder is sent to the cluster as bytes and back, so no shared file system is needed.

The local folder stays locked while its run is on the cluster. Every few seconds the current folder is copied back. So a
killed worker loses little: the run is sent again and resumes from the copy. Every node of the cluster needs the same
version of celm and the datasets.
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
from celm.engines.ray_cluster import MAX_ATTEMPTS, RayCluster, check_celm_version, raise_unless_retryable
from celm.runs.folder_transfer import read_run_files, write_run_files
from celm.runs.run_folder import RunFolder
from celm.study.plan import RunSpec
from celm.study.scheduler import POLL_SECONDS, locked_folder

_SYNC_SECONDS = 10.0


class RayPool:
    def __init__(self, size: int | None = None, address: str | None = None) -> None:
        # Ray reports dead workers on stdout, which is for results only.
        self.stdout = redirect_stdout(sys.stderr)
        self.cluster = RayCluster("--pool ray", address)
        self.stdout.__enter__()
        self.size = size or self.cluster.cpus
        self.threads = ThreadPoolExecutor(self.size)
        self.closing = Event()

    def submit(self, spec: RunSpec) -> Future[None]:
        return self.threads.submit(self._run_locked, spec)

    def close(self) -> None:
        self.closing.set()
        self.threads.shutdown()
        self.cluster.close()
        self.stdout.__exit__(None, None, None)

    def _run_locked(self, spec: RunSpec) -> None:
        with locked_folder(spec) as folder:
            folder.remove_leftovers()
            try:
                self._run_with_retries(spec, folder)
            except CelmError:
                if folder.is_new and not folder.records():
                    folder.remove_if_unused()  # no round is done: leave nothing behind
                raise

    def _run_with_retries(self, spec: RunSpec, folder: RunFolder) -> None:
        from ray.exceptions import RayError

        for attempt in range(1, MAX_ATTEMPTS + 1):
            try:
                return self._run_remote(spec, folder)
            except RayError as error:
                raise_unless_retryable(error, attempt)
        return None

    def _run_remote(self, spec: RunSpec, folder: RunFolder) -> None:
        """Run `spec` on the cluster, and write each copy of the folder that comes back."""
        ray = self.cluster.ray
        task = self.cluster.task(remote_run, spec.experiment.run.threads, num_returns="streaming")
        snapshots = task.remote(read_run_files(folder), version("celm"))
        while True:
            ready, _ = ray.wait([snapshots], timeout=POLL_SECONDS)
            if self.closing.is_set():
                ray.cancel(snapshots, force=True)
                return
            if ready:
                try:
                    write_run_files(ray.get(next(snapshots)), folder)
                except StopIteration:
                    return


def remote_run(files: dict[str, bytes], release: str) -> Iterator[dict[str, bytes]]:
    """Continue a run on the cluster. Yield its files every few seconds, and at the end."""
    from celm.runs.runner import continue_run

    check_celm_version(release)
    with TemporaryDirectory(prefix="celm-") as temporary, ThreadPoolExecutor(1) as thread:
        folder = RunFolder(Path(temporary))
        write_run_files(files, folder)
        future = thread.submit(continue_run, folder, workers=0)
        finished = False
        while not finished:
            finished = bool(wait([future], timeout=_SYNC_SECONDS).done)
            yield read_run_files(folder)
        future.result()
