"""GTG-Shapley: guided, truncated Monte Carlo Shapley values.

    φ_i ≈ mean over orders π of  v(π before i, and i) - v(π before i)        v as in `celm.rules.coalitions`

- Between rounds: nothing is estimated where |v(N) - v(∅)| ≤ `round_tolerance`.
- Guided orders: every client heads one in turn, the rest follow at random, as those at the head matter most.
- Within a round: an order ends where |v(N) - v(prefix)| < `tolerance`; those yet to come add nothing.
- The end: with φ(k) the mean over the first k orders, when for the last 10 k the mean over clients of
  |φ_i(k) - φ_i| / |φ_i| is at most `convergence`; after max(`minimum`, N) orders at the earliest, and after
  max(`minimum`, N, .8 · 2^N), or `permutations`, at the latest (the sweep over heads is completed).

Reference: Liu, Chen, Yu, Liu & Cui, GTG-Shapley: Efficient and Accurate Participant Contribution Evaluation in
Federated Learning, ACM TIST 2022, and the authors' cyyever/torch_algorithm. Left out is what only that code does:
it rescales values to the round's gain, and takes them from the best coalition's orders. It also stops at 2^N
orders; here few clients get `minimum` too, which costs nothing, as coalitions are evaluated once.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import Field

from celm.rules.coalitions import ROUNDING, CoalitionRule, Estimate, Game, marginals

LAST = 10
"""How many last estimates must agree."""


@dataclass(frozen=True)
class GtgShapley(CoalitionRule):
    """Shapley values on validation data from guided orders, cut short in and between rounds."""

    round_tolerance: Annotated[float, Field(ge=0)] = 0.001
    """A round that changes the utility by no more than this is not estimated."""
    tolerance: Annotated[float, Field(ge=0)] = 0.001
    """An order ends this near the utility of all."""
    convergence: Annotated[float, Field(ge=0)] = 0.05
    """The mean relative change of the values at which sampling ends."""
    minimum: Annotated[int, Field(ge=2)] = 30
    """The fewest orders, unless clients are more."""
    permutations: Annotated[int, Field(ge=2)] = 1000
    """The most orders."""

    def estimate(self, game: Game, draw: torch.Generator) -> Estimate:
        N = game.players
        nobody, everyone = game.ends()
        if abs(everyone - nobody) <= self.round_tolerance + ROUNDING:
            return Estimate(None, {"permutations": 0})
        least = max(self.minimum, N)
        most = min(self.permutations, max(least, math.ceil(0.8 * 2**N)))
        added = np.zeros((0, N))
        while len(added) < most and not (len(added) >= least and change(added) <= self.convergence):
            orders = [guided(head, N, draw) for head in range(N)]
            added = np.concatenate([added, marginals(game, orders, self.tolerance)])
        values: list[float] = added.mean(axis=0).tolist()
        return Estimate(values, {"permutations": len(added), "change": change(added)})


def guided(head: int, players: int, draw: torch.Generator) -> list[int]:
    """`head` first, the others at random."""
    others = [player for player in range(players) if player != head]
    return [head, *(others[i] for i in torch.randperm(players - 1, generator=draw).tolist())]


def change(added: NDArray[np.float64]) -> float:
    """By how much the last few running means of `added [P, N]` differ from the last, relative to it, at most."""
    running = added.cumsum(axis=0) / np.arange(1, len(added) + 1)[:, None]
    relative = np.abs(running[-LAST:] - running[-1]) / (np.abs(running[-1]) + 1e-12)
    return float(relative.mean(axis=1).max())
