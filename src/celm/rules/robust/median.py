"""The weighted coordinate-wise median.

With the values x of a coordinate sorted, and W_k the weight of the first k of them (total 1):

    median = (x_a + x_b) / 2        a the first with W_a ≥ 1/2,  b the first with W_b > 1/2

a and b differ only if the weights split exactly in half. With equal weights this is `numpy.median`: for even counts
the mean of the two middle values. Outliers have no effect while they hold less than half of the *weight*. Clients of
weight zero do not count. Integer and boolean buffers come from the client with the largest weight.

Reference: Yin, Chen, Ramchandran & Bartlett, Byzantine-Robust Distributed Learning: Towards Optimal Statistical
Rates, ICML 2018.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from celm.models.state_dict import StateDict
from celm.rules.robust.aggregator import RobustAggregator, apply_coordinatewise

_HALF_TOLERANCE = 1e-9
"""Tolerance within which a sum of weights counts as 1/2."""


@dataclass(frozen=True)
class Median(RobustAggregator):
    """Weighted median of every coordinate."""

    def __call__(self, states: Sequence[StateDict], weights: Sequence[float]) -> StateDict:
        return apply_coordinatewise(states, weights, _weighted_median)


def _weighted_median(values: Tensor, weights: Tensor) -> Tensor:
    """Return the median `[p]` of `values [n, p]`, sorted along n, with `weights [n, p]`."""
    cumulative = weights.cumsum(dim=0) / weights.sum(dim=0)
    lower = (cumulative < 0.5 - _HALF_TOLERANCE).sum(dim=0, keepdim=True)
    upper = (cumulative <= 0.5 + _HALF_TOLERANCE).sum(dim=0, keepdim=True)
    # Halve first: the sum of two finite values may be infinite.
    return (values.gather(0, lower) / 2 + values.gather(0, upper) / 2).squeeze(0)
