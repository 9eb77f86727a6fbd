"""Connect to a Ray cluster and run tasks on it.

A process that is already connected, as inside Flower's simulation, uses that cluster and does not shut it down. A task
is sent again if its worker is killed or its node is lost, up to three times in all.
"""

from __future__ import annotations

import logging
import os
import socket
from collections import deque
from collections.abc import Callable, Sequence
from importlib.metadata import version
from typing import Any

from celm.base.errors import CelmError

MAX_ATTEMPTS = 3
"""Number of times a task is sent before it counts as failed."""


class RayCluster:
    """A connection to a Ray cluster: at an address, or the cluster that Ray finds or starts.

    `option` is the option that the user gave, for error messages.
    """

    def __init__(self, option: str, address: str | None = None) -> None:
        self.ray = import_ray(option)
        self.is_nested: bool = self.ray.is_initialized()
        if not self.is_nested:
            _connect(self.ray, address)
        elif address:
            raise CelmError("this process is already connected to a Ray cluster", "remove --address")

    @property
    def cpus(self) -> int:
        """Return the number of CPUs of the cluster."""
        return max(1, int(self.ray.cluster_resources().get("CPU", 1)))

    def task(self, function: Callable[..., Any], cpus: int = 1, **options: Any) -> Any:
        """Return the function as a Ray task that Ray itself does not retry.

        In a nested process the task requests no CPUs: the host may have reserved all of them, as Flower does for its
        nodes, whether it uses them or not.
        """
        return self.ray.remote(num_cpus=0 if self.is_nested else cpus, max_retries=0, **options)(function)

    def gather(self, jobs: Sequence[Callable[[], Any]]) -> list[Any]:
        """Start the tasks, at most one per CPU at a time, and return their results in order."""
        from ray.exceptions import RayError

        max_pending = self.cpus
        results: dict[int, Any] = {}
        queued = deque((number, 1) for number in range(len(jobs)))
        pending: dict[Any, tuple[int, int]] = {}
        try:
            while queued or pending:
                while queued and len(pending) < max_pending:
                    number, attempt = queued.popleft()
                    pending[jobs[number]()] = number, attempt
                (done, *_), _ = self.ray.wait(list(pending))
                number, attempt = pending.pop(done)
                try:
                    results[number] = self.ray.get(done)
                except RayError as error:
                    raise_unless_retryable(error, attempt)
                    queued.append((number, attempt + 1))
            return [results[number] for number in range(len(jobs))]
        finally:
            for task in pending:
                self.ray.cancel(task, force=True)

    def close(self) -> None:
        """Disconnect, unless the process was connected before."""
        if not self.is_nested:
            self.ray.shutdown()


def import_ray(option: str) -> Any:
    """Import Ray with usage statistics switched off, and with GPUs visible to tasks that request none."""
    for name in ("RAY_USAGE_STATS_ENABLED", "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO"):
        os.environ.setdefault(name, "0")
    try:
        import ray
    except ImportError as error:
        raise CelmError(f"{option} needs Ray", "pip install 'celm[ray]'") from error
    return ray


def _connect(ray: Any, address: str | None) -> None:
    if address:
        check_address(address)
    try:
        ray.init(address=address, log_to_driver=False, logging_level=logging.ERROR)
    except (ConnectionError, ValueError, RuntimeError) as error:
        location = f" at {address}" if address else ""
        raise CelmError(f"cannot reach a Ray cluster{location}: {str(error).splitlines()[0]}") from error


def check_address(address: str) -> None:
    """Check an address within seconds; Ray itself would try for minutes."""
    if "://" in address:
        raise CelmError(
            f"--address: Ray Client is not supported: {address}",
            "run celm on a node, with --address HOST:PORT or auto",
        )
    host, _, port = address.rpartition(":")
    if host and port.isdigit():
        try:
            socket.create_connection((host, int(port)), timeout=5).close()
        except (OSError, OverflowError) as error:
            raise CelmError(f"cannot reach a Ray cluster at {address}: {error}") from error


def raise_unless_retryable(error: Exception, attempt: int) -> None:
    """Raise the error of the task itself, or of its last attempt; otherwise the task can be sent again."""
    from ray.exceptions import RayTaskError

    if isinstance(error, RayTaskError):
        raise error.cause from error
    if attempt == MAX_ATTEMPTS:
        reason = str(error).splitlines()[0]
        raise CelmError(f"the Ray worker was lost {MAX_ATTEMPTS} times: {reason}") from error


def check_celm_version(expected_version: str) -> None:
    """Check, on a worker, that this node has the same version of celm as the sender."""
    if version("celm") != expected_version:
        raise CelmError(f"a node of the cluster has celm {version('celm')}, not {expected_version}")
