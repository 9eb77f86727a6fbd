"""A Ray cluster: joined at an address, or as Ray itself finds or starts one.

A process that is in a cluster already, as inside Flower's simulation, stays a guest there and does not end it. Work
whose worker is killed, or whose node is lost, is sent again, three times at most.
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

ATTEMPTS = 3
"""How often work is sent before it counts as failed."""


class Cluster:
    def __init__(self, option: str, address: str | None = None) -> None:
        """`option` is what the user asked for, for messages."""
        self.ray = find_ray(option)
        self.guest: bool = self.ray.is_initialized()
        if not self.guest:
            join(self.ray, address)
        elif address:
            raise CelmError("this process is in a Ray cluster already", "leave out --address")

    @property
    def cpus(self) -> int:
        return max(1, int(self.ray.cluster_resources().get("CPU", 1)))

    def task(self, function: Callable[..., Any], cpus: int = 1, **options: Any) -> Any:
        """The function as a task that is not repeated by Ray itself.

        As a guest it asks for no CPUs: the host, as Flower does for its nodes, may hold them all for as long as it
        lives, busy or not.
        """
        return self.ray.remote(num_cpus=0 if self.guest else cpus, max_retries=0, **options)(function)

    def gather(self, jobs: Sequence[Callable[[], Any]]) -> list[Any]:
        """What the tasks return that the jobs send off, in order; no more of them on their way than there are CPUs."""
        from ray.exceptions import RayError

        at_once = self.cpus
        found: dict[int, Any] = {}
        waiting = deque((number, 1) for number in range(len(jobs)))
        away: dict[Any, tuple[int, int]] = {}
        try:
            while waiting or away:
                while waiting and len(away) < at_once:
                    number, attempt = waiting.popleft()
                    away[jobs[number]()] = number, attempt
                (done, *_), _ = self.ray.wait(list(away))
                number, attempt = away.pop(done)
                try:
                    found[number] = self.ray.get(done)
                except RayError as error:
                    pass_on(error, attempt)
                    waiting.append((number, attempt + 1))
            return [found[number] for number in range(len(jobs))]
        finally:
            for task in away:
                self.ray.cancel(task, force=True)

    def close(self) -> None:
        if not self.guest:
            self.ray.shutdown()


def find_ray(option: str) -> Any:
    # Nothing is reported to Ray's makers, and a run that computes on a GPU may see it.
    for name in ("RAY_USAGE_STATS_ENABLED", "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO"):
        os.environ.setdefault(name, "0")
    try:
        import ray
    except ImportError as error:
        raise CelmError(f"{option} needs Ray", "pip install 'celm[ray]'") from error
    return ray


def join(ray: Any, address: str | None) -> None:
    if address:
        check_address(address)
    try:
        ray.init(address=address, log_to_driver=False, logging_level=logging.ERROR)
    except (ConnectionError, ValueError, RuntimeError) as error:
        where = f" at {address}" if address else ""
        raise CelmError(f"cannot reach a Ray cluster{where}: {str(error).splitlines()[0]}") from error


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


def pass_on(error: Exception, attempt: int) -> None:
    """Raises what the work itself raised, and the last loss of its worker; after any other it can be sent again."""
    from ray.exceptions import RayTaskError

    if isinstance(error, RayTaskError):
        raise error.cause from error
    if attempt == ATTEMPTS:
        reason = str(error).splitlines()[0]
        raise CelmError(f"the Ray worker was lost {ATTEMPTS} times: {reason}") from error


def check_release(release: str) -> None:
    """At a worker: whether this node's celm is that of whoever sent the work."""
    if version("celm") != release:
        raise CelmError(f"a node of the cluster has celm {version('celm')}, not {release}")
