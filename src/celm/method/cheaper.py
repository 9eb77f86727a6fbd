"""Cheaper probes: longer steps, as few as the scores need, and a sample of the classes.

**Step doubling.** A probe walks a way of length L η. With n < L steps of size L η / n it walks the same way more
coarsely. From n steps to L there are log₂(L / n) doublings left; if none of them changes the scores by more than the
last one did, what is left is at most

    e(n) = log₂(L / n) max_i |c̄_i(n) - c̄_i(n/2)|

n = n₀, 2 n₀, 4 n₀, … until e(n) is within the tolerance, or the whole L steps are taken. The bound is on the scores,
not on the logits, and it is as good as that assumption (results/bench counts how often it holds).

**A sample of classes.** ĉ_i is a mean over K classes, so the mean over m of them, drawn without replacement, has it as
its expectation, and the standard error

    e_i = sd_c(r_ic) sqrt((1 - m/K) / m)

The classes are taken in turn from one random order, so that every class is seen once before any is seen twice.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from celm.base.randomness import generator
from celm.method.evidence import shares
from celm.method.probe import Probe

COARSEST = 10
"""n₀: the first walk's steps."""

Walk = Callable[[int, float], Probe]
"""Probes with so many steps of such a size, always from the same start."""


def refined(
    walk: Walk, scores_of: Callable[[Probe], Tensor], steps: int, lr: float, tolerance: float
) -> tuple[Probe, float]:
    """The coarsest walk whose scores are within `tolerance` of the whole probe's, and e(n): 0 for the whole one."""
    count, before = COARSEST, None
    while count < steps:
        found = walk(count, lr * steps / count)
        now = scores_of(found)
        if before is not None:
            left = math.log2(steps / count) * float((now - before).abs().max())
            if left <= tolerance:
                return found, left
        before, count = now, 2 * count
    return walk(steps, lr), 0.0


def sampled_classes(classes: int, wanted: int | None, seed: int, number: int) -> list[int]:
    """The classes to probe in round `number`, counted from 1, in ascending order."""
    if wanted is None or wanted >= classes:
        return list(range(classes))
    order = torch.randperm(classes, generator=generator(seed, "classes")).tolist()
    first = (number - 1) * wanted
    return sorted(order[(first + i) % classes] for i in range(wanted))


def sampling_errors(Q: Tensor, classes: int) -> Tensor:
    """e `[N]`: standard errors of the mean shares, from the evidence `[N, m]` for m of all classes."""
    count = Q.shape[1]
    if count >= classes:
        return torch.zeros(len(Q), dtype=torch.float64)
    if count < 2:
        return torch.full((len(Q),), math.inf, dtype=torch.float64)
    return shares(Q).std(dim=1) * math.sqrt((1 - count / classes) / count)
