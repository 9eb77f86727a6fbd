"""Cells on processes of this machine, kept from cell to cell. One that dies takes only its own cell with it."""

from __future__ import annotations

import multiprocessing
import os
import signal
from concurrent.futures import BrokenExecutor, Future, ProcessPoolExecutor

from celm.engines.choice import available_cores
from celm.engines.workers import die_with_parent
from celm.study.grid import Cell, run_cell


class Processes:
    def __init__(self, size: int | None = None) -> None:
        self.size = size or available_cores()
        self.last: dict[ProcessPoolExecutor, Future[None]] = {}
        """Each process (an executor of one) with the last cell it was given."""

    def submit(self, cell: Cell) -> Future[None]:
        for process in [process for process, work in self.last.items() if work.done()]:
            try:
                self.last[process] = process.submit(run_cell, cell)
            except BrokenExecutor:  # it died, with its last cell or idle since
                del self.last[process]
            else:
                return self.last[process]
        process = self.started()
        self.last[process] = process.submit(run_cell, cell)
        return self.last[process]

    def started(self) -> ProcessPoolExecutor:
        # "spawn" everywhere: a forked torch may hang in its thread pool.
        return ProcessPoolExecutor(1, multiprocessing.get_context("spawn"), prepare, (os.getpid(),))

    def close(self) -> None:
        for executor in self.last:
            for process in list((executor._processes or {}).values()):
                process.kill()
            executor.shutdown(wait=False, cancel_futures=True)


def prepare(parent: int) -> None:
    die_with_parent(parent)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
