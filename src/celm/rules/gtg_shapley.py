"""GTG-Shapley: Shapley values by guided truncated Monte Carlo sampling.

    φ_i ≈ mean over orders π of  v(π before i, and i) - v(π before i)        v as in `celm.rules.coalitions`

- Between rounds: values are not estimated if |v(N) - v(∅)| ≤ `round_tolerance`.
- Guided orders: every client leads one order in turn, the others follow at random. The first positions matter most.
- Within a round: an order ends as soon as |v(N) - v(prefix)| < `tolerance`; the remaining clients add 0.
- Convergence: φ(k) is the mean over the first k orders. Sampling ends when, for each of the last 10 values of k, the
  mean over clients of |φ_i(k) - φ_i| / |φ_i| is at most `convergence`. It takes at least max(`minimum`, N) orders, and
  at most max(`minimum`, N, .8 · 2^N) or `permutations`. The last sweep over leading clients is completed.

Reference: Liu, Chen, Yu, Liu & Cui, GTG-Shapley: Efficient and Accurate Participant Contribution Evaluation in
Federated Learning, ACM TIST 2022, and the authors' cyyever/torch_algorithm. Deviations: that
code also rescales values to the round's gain and takes them from the orders of the best coalition; we do not. It
stops at 2^N orders; here also few clients get `minimum`, which is free, because coalitions are evaluated once.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import Field

from celm.rules.coalitions import UTILITY_EPS, CoalitionRule, Game, ValueEstimate, marginal_contributions

_CONVERGENCE_WINDOW = 10
"""Number of last estimates that must agree."""


@dataclass(frozen=True)
class GtgShapley(CoalitionRule):
    """Shapley values on validation data from guided truncated orders.

    Orders are truncated within rounds, and rounds that change little are skipped.
    """

    round_tolerance: Annotated[float, Field(ge=0)] = 0.001
    """Rounds that change the utility by at most this are not estimated."""
    tolerance: Annotated[float, Field(ge=0)] = 0.001
    """An order ends this close to the utility of all clients."""
    convergence: Annotated[float, Field(ge=0)] = 0.05
    """Mean relative change of the values at which sampling ends."""
    minimum: Annotated[int, Field(ge=2)] = 30
    """Smallest number of orders; the number of clients if that is larger."""
    permutations: Annotated[int, Field(ge=2)] = 1000
    """Largest number of orders."""

    def estimate(self, game: Game, generator: torch.Generator) -> ValueEstimate:
        N = game.players
        empty_value, grand_value = game.empty_and_grand()
        if abs(grand_value - empty_value) <= self.round_tolerance + UTILITY_EPS:
            return ValueEstimate(None, {"permutations": 0})
        min_orders = max(self.minimum, N)
        max_orders = min(self.permutations, max(min_orders, math.ceil(0.8 * 2**N)))
        contributions = np.zeros((0, N))
        while len(contributions) < max_orders and not (
            len(contributions) >= min_orders and relative_change(contributions) <= self.convergence
        ):
            orders = [guided_permutation(first, N, generator) for first in range(N)]
            contributions = np.concatenate(
                [contributions, marginal_contributions(game, orders, self.tolerance)]
            )
        values: list[float] = contributions.mean(axis=0).tolist()
        return ValueEstimate(
            values, {"permutations": len(contributions), "change": relative_change(contributions)}
        )


def guided_permutation(first: int, players: int, generator: torch.Generator) -> list[int]:
    """Return an order with player `first` first and the others at random."""
    others = [player for player in range(players) if player != first]
    return [first, *(others[i] for i in torch.randperm(players - 1, generator=generator).tolist())]


def relative_change(contributions: NDArray[np.float64]) -> float:
    """Return the largest relative difference of the last few running means of `contributions [P, N]` from the last."""
    running_means = contributions.cumsum(axis=0) / np.arange(1, len(contributions) + 1)[:, None]
    relative = np.abs(running_means[-_CONVERGENCE_WINDOW:] - running_means[-1]) / (
        np.abs(running_means[-1]) + 1e-12
    )
    return float(relative.mean(axis=1).max())
