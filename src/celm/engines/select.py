"""Select the engine of a federation: from the settings, or from the estimated training time."""

from __future__ import annotations

import os
import time

import torch

from celm.core.probe import eval_without_grad
from celm.engines.in_process import InProcessEngine
from celm.engines.process_engine import ProcessEngine
from celm.federation.build import Federation
from celm.federation.client_trainer import ClientTrainer, Engine

_MIN_SECONDS_FOR_WORKERS = 15.0
"""Seconds of training from which workers pay off; each takes a few seconds to start."""

_TIMING_REPEATS = 5
"""Number of forward passes that are timed."""


def select_engine(federation: Federation, rounds_left: int) -> Engine:
    """Return the engine for the remaining rounds. The choice does not change results."""
    run = federation.experiment.run
    experiment = federation.experiment
    if experiment.objective.object or experiment.model.object:  # worker processes do not have them
        return InProcessEngine(federation.trainer)
    count = _choose_worker_count(federation, rounds_left) if run.workers is None else run.workers
    if count == 0:
        return InProcessEngine(federation.trainer)
    return ProcessEngine(federation.trainer, min(count, len(federation.context.clients)), run.threads)


def _choose_worker_count(federation: Federation, rounds_left: int) -> int:
    """Return one worker per core if the training is long enough, else 0 for this process."""
    workers = min(available_cores(), len(federation.context.clients))
    if workers < 2 or federation.trainer.device != "cpu":
        return 0
    return workers if _estimate_training_seconds(federation, rounds_left) > _MIN_SECONDS_FOR_WORKERS else 0


def available_cores() -> int:
    """Return the number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _estimate_training_seconds(federation: Federation, rounds: int) -> float:
    """Estimate the training time on one core."""
    trainer, participation = federation.trainer, federation.experiment.run.participation
    samples = sum(len(data.rows) for data in trainer.client_data.values())
    return seconds_per_sample(trainer) * samples * trainer.train_config.epochs * participation * rounds


def seconds_per_sample(trainer: ClientTrainer) -> float:
    """Estimate the time to train on one sample, on one core.

    The fastest of a few forward passes is timed. A training step costs about three of them.
    """
    batch = trainer.inputs[: trainer.train_config.batch]
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # several threads wait for each other if other processes use the cores
    times = []
    try:
        with eval_without_grad(trainer.module), torch.no_grad():
            for _ in range(_TIMING_REPEATS):
                start = time.perf_counter()
                trainer.module(batch)
                times.append(time.perf_counter() - start)
    finally:
        torch.set_num_threads(threads)
    return 3 * min(times) / len(batch)
