"""The coordinate-wise trimmed mean, weighted.

Of each coordinate the ⌊trim · n⌋ smallest and as many greatest values are left out, whatever their weights; the
others are averaged with the rule's weights, scaled to sum 1 among them:

    mean = Σ_{k kept} w_k x_k / Σ_{k kept} w_k

With equal weights this is `scipy.stats.trim_mean`. Clients of weight zero are not among the n; integer and
boolean buffers come from the heaviest client.

Reference: Yin, Chen, Ramchandran & Bartlett, Byzantine-Robust Distributed Learning: Towards Optimal Statistical
Rates, ICML 2018.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

from pydantic import Field
from torch import Tensor

from celm.models.state import StateDict
from celm.rules.robust.combine import Combine
from celm.rules.robust.median import coordinatewise


@dataclass(frozen=True)
class TrimmedMean(Combine):
    """The weighted mean of every coordinate without its extremes."""

    trim: Annotated[float, Field(ge=0, lt=0.5)] = 0.2
    """The fraction of clients left out at either end."""

    def __call__(self, states: Sequence[StateDict], weights: Sequence[float]) -> StateDict:
        return coordinatewise(states, weights, self.inner_mean)

    def inner_mean(self, values: Tensor, weights: Tensor) -> Tensor:
        """`[p]` from sorted `values [n, p]` and their `weights [n, p]`."""
        n = len(values)
        # trim · n is rounded, and with trim close to 1/2 would leave nothing.
        cut = min(int(self.trim * n), (n - 1) // 2)
        kept, share = values[cut : n - cut], weights[cut : n - cut]
        return (kept * (share / share.sum(dim=0))).sum(dim=0)
