"""Truncated Monte Carlo Shapley values.

    φ_i ≈ mean over random orders π of  v(π before i, and i) - v(π before i)        v as in `celm.rules.coalitions`

An order ends as soon as |v(N) - v(prefix)| < `tolerance`; the remaining clients add 0. In a monotone game this costs
a client at most `tolerance`, and Σ_i φ_i stays within `tolerance` of v(N) - v(∅). Sampling ends when the 90 %
confidence interval of every mean is within ± `precision`, or after `permutations` orders.

Reference: Ghorbani & Zou, Data Shapley: Equitable Valuation of Data for Machine Learning, ICML 2019; the stopping
rule by confidence interval is that of Labelia's mplc. Its tolerance of .05 exceeds the gain of most rounds, so the
default here is smaller.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import numpy as np
import torch
from pydantic import Field

from celm.rules.coalitions import CoalitionRule, Game, ValueEstimate, marginal_contributions

_ORDERS_PER_BATCH = 16
"""Number of orders between two checks of the standard errors. They advance together, one client at a time."""
Z_90 = 1.6448536269514722
"""Half the width of the 90 % confidence interval, in standard errors."""


@dataclass(frozen=True)
class TmcShapley(CoalitionRule):
    """Shapley values on validation data from truncated random orders."""

    permutations: Annotated[int, Field(ge=2)] = 200
    """Largest number of orders per round."""
    tolerance: Annotated[float, Field(ge=0)] = 0.001
    """An order ends this close to the utility of all clients; 0: orders are never cut."""
    precision: Annotated[float, Field(ge=0)] = 0.001
    """Sampling ends when the 90 % interval of every value is within ± this; 0: all `permutations` are sampled."""

    def estimate(self, game: Game, generator: torch.Generator) -> ValueEstimate:
        contributions = np.zeros((0, game.players))
        errors = np.full(game.players, np.inf)
        while len(contributions) < self.permutations and Z_90 * errors.max() > self.precision:
            count = min(_ORDERS_PER_BATCH, self.permutations - len(contributions))
            orders = [torch.randperm(game.players, generator=generator).tolist() for _ in range(count)]
            contributions = np.concatenate(
                [contributions, marginal_contributions(game, orders, self.tolerance)]
            )
            errors = contributions.std(axis=0, ddof=1) / len(contributions) ** 0.5
        values: list[float] = contributions.mean(axis=0).tolist()
        return ValueEstimate(values, {"permutations": len(contributions)}, errors.tolist())
