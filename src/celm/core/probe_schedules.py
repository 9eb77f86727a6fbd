"""Cheaper probes: fewer and longer steps, as the scores allow, and a sample of the classes.

**Step doubling.** A probe covers a path of length L η. With n < L steps of size L η / n it covers the same path more
coarsely. From n steps to L, log₂(L / n) doublings remain. If none of them changes the scores by more than the last
one did, the remaining error is at most

    e(n) = log₂(L / n) max_i |c̄_i(n) - c̄_i(n/2)|

n = n₀, 2 n₀, 4 n₀, … until e(n) is within the tolerance, or until all L steps are taken. The bound is on the scores,
not on the logits, and it is as good as its assumption (results/bench counts how often it holds).

**A sample of classes.** ĉ_i is a mean over K classes. The mean over m of them, drawn without replacement, has ĉ_i as
its expectation, and the standard error

    e_i = sd_c(r_ic) sqrt((1 - m/K) / m)

Classes are taken in turn from one random order, so every class is probed once before any is probed twice.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol, TypeVar

import torch
from torch import Tensor

from celm.base.randomness import make_generator
from celm.core.evidence import shares

INITIAL_STEPS = 10
"""n₀: the number of steps of the first probe."""

_Result = TypeVar("_Result")


class ProbeSchedule(Protocol):
    """The number and size of the steps of a probe."""

    def run(
        self, run_probe: Callable[[int, float], _Result], score: Callable[[_Result], Tensor]
    ) -> tuple[_Result, float | None]:
        """Return the result of `run_probe(steps, lr)`, and a bound on the error of its scores `[N]`, if known.

        Every call of `run_probe` must begin at the same inputs.
        """


@dataclass(frozen=True)
class FixedSteps:
    """L steps of size η, as in the paper."""

    steps: int
    lr: float

    def run(
        self, run_probe: Callable[[int, float], _Result], score: Callable[[_Result], Tensor]
    ) -> tuple[_Result, float | None]:
        return run_probe(self.steps, self.lr), None


@dataclass(frozen=True)
class StepDoubling:
    """The fewest steps for which e(n) is within `tolerance`; e(L) is 0."""

    steps: int
    lr: float
    tolerance: float

    def run(
        self, run_probe: Callable[[int, float], _Result], score: Callable[[_Result], Tensor]
    ) -> tuple[_Result, float]:
        count, previous_scores = INITIAL_STEPS, None
        while count < self.steps:
            result = run_probe(count, self.lr * self.steps / count)
            current_scores = score(result)
            if previous_scores is not None:
                change = float((current_scores - previous_scores).abs().max())
                error_bound = math.log2(self.steps / count) * change
                if error_bound <= self.tolerance:
                    return result, error_bound
            previous_scores, count = current_scores, 2 * count
        return run_probe(self.steps, self.lr), 0.0


def make_schedule(steps: int, lr: float, tolerance: float | None) -> ProbeSchedule:
    """Return a schedule of fixed steps; with a tolerance, step doubling."""
    return FixedSteps(steps, lr) if tolerance is None else StepDoubling(steps, lr, tolerance)


def sample_classes(classes: int, count: int, seed: int, round_number: int) -> list[int]:
    """Return the classes to probe in round `round_number`, counted from 1, in ascending order."""
    if count >= classes:
        return list(range(classes))
    order = torch.randperm(classes, generator=make_generator(seed, "classes")).tolist()
    first = (round_number - 1) * count
    return sorted(order[(first + i) % classes] for i in range(count))


def class_sampling_errors(Q: Tensor, classes: int) -> Tensor:
    """Return e `[N]`, the standard errors of the mean shares, from the evidence `[N, m]` for m of all classes."""
    count = Q.shape[1]
    if count >= classes:
        return torch.zeros(len(Q), dtype=torch.float64)
    if count < 2:
        return torch.full((len(Q),), math.inf, dtype=torch.float64)
    return shares(Q).std(dim=1) * math.sqrt((1 - count / classes) / count)
