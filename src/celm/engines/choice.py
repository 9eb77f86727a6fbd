"""Which engine runs a federation: as the settings say, or by the size of the work."""

from __future__ import annotations

import os
import time

import torch

from celm.engines.in_process import InProcess
from celm.engines.workers import Workers
from celm.federation.assembly import Federation
from celm.federation.jobs import Engine, Workbench
from celm.method.probe import frozen

WORTH_STARTING_WORKERS = 15.0
"""Seconds of training that repay the few seconds a worker takes to start."""

TRIES = 5
"""Forward passes that are timed."""


def engine_for(federation: Federation, rounds_left: int) -> Engine:
    run = federation.experiment.run
    count = fitting_workers(federation, rounds_left) if run.workers is None else run.workers
    if count == 0:
        return InProcess(federation.workbench)
    return Workers(federation.workbench, min(count, len(federation.facts.clients)), run.threads)


def fitting_workers(federation: Federation, rounds_left: int) -> int:
    """One worker a core where there is enough to do; 0 is this process. Results do not depend on it."""
    workers = min(available_cores(), len(federation.facts.clients))
    if workers < 2 or federation.workbench.device != "cpu":
        return 0
    return workers if expected_seconds(federation, rounds_left) > WORTH_STARTING_WORKERS else 0


def available_cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def expected_seconds(federation: Federation, rounds: int) -> float:
    """Training time on one core."""
    bench, share = federation.workbench, federation.experiment.run.participation
    samples = sum(len(holding.rows) for holding in bench.holdings.values())
    return seconds_a_sample(bench) * samples * bench.train.epochs * share * rounds


def seconds_a_sample(bench: Workbench) -> float:
    """To train on it once, on one core, from the fastest of a few forward passes; a step costs about three."""
    batch = bench.inputs[: bench.train.batch]
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # more of them wait for one another where the cores are busy
    times = []
    try:
        with frozen(bench.module), torch.no_grad():
            for _ in range(TRIES):
                start = time.perf_counter()
                bench.module(batch)
                times.append(time.perf_counter() - start)
    finally:
        torch.set_num_threads(threads)
    return 3 * min(times) / len(batch)
