"""Runs in processes of this machine. A process is reused for later runs; if it dies, only its own run fails."""

from __future__ import annotations

import multiprocessing
import os
import signal
from concurrent.futures import BrokenExecutor, Future, ProcessPoolExecutor

from celm.base.processes import without_main_script
from celm.engines.process_engine import die_with_parent
from celm.engines.select import available_cores
from celm.study.plan import RunSpec
from celm.study.scheduler import run_one


class ProcessPool:
    def __init__(self, size: int | None = None) -> None:
        self.size = size or available_cores()
        self.last_futures: dict[ProcessPoolExecutor, Future[None]] = {}
        """Each process, an executor with one worker, to the future of its last run."""

    def submit(self, spec: RunSpec) -> Future[None]:
        for process in [process for process, future in self.last_futures.items() if future.done()]:
            try:
                self.last_futures[process] = process.submit(run_one, spec)
            except BrokenExecutor:  # it died during its last run or since then
                del self.last_futures[process]
            else:
                return self.last_futures[process]
        process = self._start_process()
        with without_main_script(spec.experiment.model.name.startswith("__main__:")):
            self.last_futures[process] = process.submit(run_one, spec)
        return self.last_futures[process]

    def _start_process(self) -> ProcessPoolExecutor:
        # "spawn" everywhere: a forked torch may hang in its thread pool.
        return ProcessPoolExecutor(1, multiprocessing.get_context("spawn"), _init_worker, (os.getpid(),))

    def close(self) -> None:
        for executor in self.last_futures:
            for process in list((executor._processes or {}).values()):
                process.kill()
            executor.shutdown(wait=False, cancel_futures=True)


class InThisProcess:
    """Runs one after the other in this process, for components that only this process has."""

    size = 1

    def submit(self, spec: RunSpec) -> Future[None]:
        future: Future[None] = Future()
        try:
            run_one(spec)
        except Exception as error:  # an error of this run alone
            future.set_exception(error)
        else:
            future.set_result(None)
        return future

    def close(self) -> None:
        """Do nothing: no run is left."""


def _init_worker(parent: int) -> None:
    die_with_parent(parent)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
