"""Functions that benchmarks share: timing in turns, medians with spread, and a description of the machine."""

from __future__ import annotations

import os
import platform
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any, TypeVar

import torch

from celm.base.huge_pages import enable_huge_pages

enable_huge_pages()  # as celm's own processes do
Result = TypeVar("Result")


def timed(function: Callable[..., Result], *arguments: Any) -> tuple[Result, float]:
    """Return the result of a call, and its seconds."""
    start = time.perf_counter()
    result = function(*arguments)
    return result, time.perf_counter() - start


def interleaved(
    cases: Mapping[str, Callable[[], Result]],
    repeats: int,
    watch: Callable[[str, Result], object] = lambda name, result: None,
) -> dict[str, list[Result]]:
    """Run all cases in turns, every other turn backwards, so that a slow minute affects all cases alike.

    >>> interleaved({"a": lambda: 1, "b": lambda: 2}, repeats=2)
    {'a': [1, 1], 'b': [2, 2]}
    """
    results: dict[str, list[Result]] = {name: [] for name in cases}
    for repeat in range(repeats):
        for name in list(cases)[:: -1 if repeat % 2 else 1]:
            results[name].append(cases[name]())
            watch(name, results[name][-1])
    return results


def median_and_spread(values: Sequence[float]) -> dict[str, Any]:
    """Return median, minimum and maximum of the values, and their number.

    >>> median_and_spread([3.0, 1.0, 2.0])
    {'median': 2.0, 'least': 1.0, 'most': 3.0, 'count': 3}
    """
    return {"median": median(values), "least": min(values), "most": max(values), "count": len(values)}


def peak_megabytes() -> float:
    """Return the peak memory of this process alone.

    `ru_maxrss` would include the peak of the parent, which Linux passes on to its children.
    """
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) / 1024
    raise RuntimeError("the kernel does not report the peak memory of a process")


def describe_machine() -> dict[str, Any]:
    """Return processor, versions, and the load before the benchmark."""
    return {
        "cpu": processor_name(),
        "vector_instructions": torch.backends.cpu.get_cpu_capability(),
        "cores": os.cpu_count(),
        "usable_cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "system": platform.platform(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "load_before": os.getloadavg(),
    }


def processor_name() -> str:
    """Return the name of the processor. On Linux it is in /proc/cpuinfo."""
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.is_file():
        for line in cpuinfo.read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()
