"""What benchmarks share: taking turns, a median with its spread, and facts about the machine."""

from __future__ import annotations

import os
import platform
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any, TypeVar

import torch

from celm.base.memory import use_large_pages

use_large_pages()  # as celm's own processes do
Result = TypeVar("Result")


def timed(function: Callable[..., Result], *arguments: Any) -> tuple[Result, float]:
    """What a call returns, and its seconds."""
    start = time.perf_counter()
    result = function(*arguments)
    return result, time.perf_counter() - start


def interleaved(
    cases: Mapping[str, Callable[[], Result]],
    repeats: int,
    watch: Callable[[str, Result], object] = lambda name, result: None,
) -> dict[str, list[Result]]:
    """Every case once, then every case again, every other time backwards: a slow minute meets them all alike.

    >>> interleaved({"a": lambda: 1, "b": lambda: 2}, repeats=2)
    {'a': [1, 1], 'b': [2, 2]}
    """
    found: dict[str, list[Result]] = {name: [] for name in cases}
    for repeat in range(repeats):
        for name in list(cases)[:: -1 if repeat % 2 else 1]:
            found[name].append(cases[name]())
            watch(name, found[name][-1])
    return found


def median_and_spread(values: Sequence[float]) -> dict[str, Any]:
    """
    >>> median_and_spread([3.0, 1.0, 2.0])
    {'median': 2.0, 'least': 1.0, 'most': 3.0, 'count': 3}
    """
    return {"median": median(values), "least": min(values), "most": max(values), "count": len(values)}


def peak_megabytes() -> float:
    """The most memory that this process ever had at a time, itself alone.

    `ru_maxrss` would begin with what the parent had, which Linux hands on to its children.
    """
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) / 1024
    raise RuntimeError("the kernel does not tell the peak of a process")


def machine() -> dict[str, Any]:
    """Who computes, and how busy it is before the benchmark."""
    return {
        "cpu": processor(),
        "vector_instructions": torch.backends.cpu.get_cpu_capability(),
        "cores": os.cpu_count(),
        "usable_cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "system": platform.platform(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "load_before": os.getloadavg(),
    }


def processor() -> str:
    """The processor's name as the system gives it; Linux keeps it in a file."""
    facts = Path("/proc/cpuinfo")
    if facts.is_file():
        for line in facts.read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()
