"""Class samplers: the classes that a round probes.

AllClasses        every class in every round, as in the paper
RotatingClasses   m of K classes per round, in turn (celm.core.probe_schedules); the others keep earlier values
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from torch import Tensor

from celm.core.probe_schedules import class_sampling_errors, sample_classes


class ClassSampler(Protocol):
    """The classes of a round, and the extension of their values to all classes."""

    def classes(self, round_number: int) -> list[int]:
        """Return the classes to probe in a round, in ascending order."""

    def fill(self, values: Tensor, classes: Sequence[int], previous: Callable[[], Tensor]) -> Tensor:
        """Return values of all classes `[K, ...]`: `values` for `classes`, those of `previous()` for the others."""

    def diagnostics(self, clients: Sequence[str], classes: Sequence[int], Q: Tensor) -> dict[str, Any]:
        """Return diagnostics of a sample, from the evidence `[N, m]` for `classes`."""


@dataclass(frozen=True)
class AllClasses:
    """All K classes in every round."""

    num_classes: int

    def classes(self, round_number: int) -> list[int]:
        return list(range(self.num_classes))

    def fill(self, values: Tensor, classes: Sequence[int], previous: Callable[[], Tensor]) -> Tensor:
        return values

    def diagnostics(self, clients: Sequence[str], classes: Sequence[int], Q: Tensor) -> dict[str, Any]:
        return {}


@dataclass(frozen=True)
class RotatingClasses:
    """`count` of K classes in each round, in turn from one random order."""

    num_classes: int
    count: int
    seed: int

    def classes(self, round_number: int) -> list[int]:
        return sample_classes(self.num_classes, self.count, self.seed, round_number)

    def fill(self, values: Tensor, classes: Sequence[int], previous: Callable[[], Tensor]) -> Tensor:
        filled = previous().clone()
        filled[list(classes)] = values.to(filled)
        return filled

    def diagnostics(self, clients: Sequence[str], classes: Sequence[int], Q: Tensor) -> dict[str, Any]:
        errors = class_sampling_errors(Q, self.num_classes).tolist()
        return {"probed": list(classes), "standard_errors": dict(zip(clients, errors, strict=True))}


def make_class_sampler(num_classes: int, count: int | None, seed: int) -> ClassSampler:
    """Return the sampler of `count` classes per round; None or at least K means all."""
    if count is None or count >= num_classes:
        return AllClasses(num_classes)
    return RotatingClasses(num_classes, count, seed)
