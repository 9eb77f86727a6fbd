"""Truncated Monte Carlo Shapley values.

    φ_i ≈ mean over random orders π of  v(π before i, and i) - v(π before i)        v as in `celm.rules.coalitions`

An order ends where |v(N) - v(prefix)| < `tolerance`: those yet to come are taken to add nothing, which costs a
client of a monotone game at most `tolerance`, and leaves Σ_i φ_i within it of v(N) - v(∅). Sampling ends when
every mean is known to ± `precision` at 90 %, or after `permutations` orders.

Reference: Ghorbani & Zou, Data Shapley: Equitable Valuation of Data for Machine Learning, ICML 2019; the end by
confidence interval as in Labelia's mplc. The tolerance of .05 used there is more than most rounds gain, so the
default here is finer.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import numpy as np
import torch
from pydantic import Field

from celm.rules.coalitions import CoalitionRule, Estimate, Game, marginals

SIDE_BY_SIDE = 16
"""Orders between two looks at the standard errors; they are walked together, so this many models at a time."""
NINETY_PERCENT = 1.6448536269514722
"""Half the width of the 90 % confidence interval, in standard errors."""


@dataclass(frozen=True)
class TmcShapley(CoalitionRule):
    """Shapley values on validation data from random orders of the clients, cut short."""

    permutations: Annotated[int, Field(ge=2)] = 200
    """The most orders that are sampled in a round."""
    tolerance: Annotated[float, Field(ge=0)] = 0.001
    """An order ends this near the utility of all; 0 walks every order to its end."""
    precision: Annotated[float, Field(ge=0)] = 0.001
    """Sampling ends when the 90 % interval of every client's value is within ± this; 0 takes all `permutations`."""

    def estimate(self, game: Game, draw: torch.Generator) -> Estimate:
        added = np.zeros((0, game.players))
        errors = np.full(game.players, np.inf)
        while len(added) < self.permutations and NINETY_PERCENT * errors.max() > self.precision:
            count = min(SIDE_BY_SIDE, self.permutations - len(added))
            orders = [torch.randperm(game.players, generator=draw).tolist() for _ in range(count)]
            added = np.concatenate([added, marginals(game, orders, self.tolerance)])
            errors = added.std(axis=0, ddof=1) / len(added) ** 0.5
        values: list[float] = added.mean(axis=0).tolist()
        return Estimate(values, {"permutations": len(added)}, errors.tolist())
