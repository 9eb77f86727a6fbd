"""The weighted coordinate-wise trimmed mean.

The ⌊trim · n⌋ smallest and the same number of largest values of a coordinate are dropped, whatever their weights. The
others are averaged with the rule's weights, scaled to sum 1:

    mean = Σ_{k kept} w_k x_k / Σ_{k kept} w_k

With equal weights this is `scipy.stats.trim_mean`. Clients of weight zero are not among the n. Integer and boolean
buffers come from the client with the largest weight.

Reference: Yin, Chen, Ramchandran & Bartlett, Byzantine-Robust Distributed Learning: Towards Optimal Statistical
Rates, ICML 2018.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

from pydantic import Field
from torch import Tensor

from celm.models.state_dict import StateDict
from celm.rules.robust.aggregator import RobustAggregator, apply_coordinatewise


@dataclass(frozen=True)
class TrimmedMean(RobustAggregator):
    """Weighted mean of every coordinate without its extreme values."""

    trim: Annotated[float, Field(ge=0, lt=0.5)] = 0.2
    """Fraction of clients dropped at each end."""

    def __call__(self, states: Sequence[StateDict], weights: Sequence[float]) -> StateDict:
        return apply_coordinatewise(states, weights, self._inner_mean)

    def _inner_mean(self, values: Tensor, weights: Tensor) -> Tensor:
        """Return the mean `[p]` of sorted `values [n, p]` with `weights [n, p]`."""
        n = len(values)
        # trim · n is rounded; with trim close to 1/2 no value would remain.
        num_trimmed = min(int(self.trim * n), (n - 1) // 2)
        inner_values, inner_weights = (
            values[num_trimmed : n - num_trimmed],
            weights[num_trimmed : n - num_trimmed],
        )
        return (inner_values * (inner_weights / inner_weights.sum(dim=0))).sum(dim=0)
