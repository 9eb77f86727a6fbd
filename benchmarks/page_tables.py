"""Text that several parts of the page of all benchmarks use."""

from __future__ import annotations

from typing import Any

Json = Any


def format_spread(stats: Json, digits: int = 2) -> str:
    """Return the median with minimum and maximum as text."""
    return f"{stats['median']:.{digits}f} ({stats['least']:.{digits}f} to {stats['most']:.{digits}f})"


def describe_environment(report: Json) -> str:
    machine = report["machine"]
    load = ", ".join(f"{value:.1f}" for value in machine["load_before"])
    return (
        f"{machine['cpu']}, {machine['usable_cores']} cores, {machine['vector_instructions']}, torch"
        f" {machine['torch']}; load before: {load}."
    )
