"""Exact Shapley values of every round.

    φ_i = Σ_{S ⊆ N \\ i}  |S|! (N - |S| - 1)! / N!  (v(S ∪ i) - v(S))        v as in `celm.rules.coalitions`

All 2^N coalitions are evaluated; Σ_i φ_i = v(N) - v(∅).
References: Shapley, A Value for n-Person Games, 1953; Song, Tong & Wei, Profit Allocation for Federated Learning,
IEEE Big Data 2019 (MR: one game per round, values summed over rounds). With partial participation it is the
federated Shapley value of Wang, Rausch, Zhang, Jia & Song, A Principled Approach to Data Valuation for Federated
Learning, 2020.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated

import numpy as np
import torch
from pydantic import Field

from celm.base.errors import CelmError
from celm.rules.coalitions import CoalitionRule, Game, ValueEstimate


@dataclass(frozen=True)
class Shapley(CoalitionRule):
    """Exact Shapley values on validation data, from all coalitions.

    Every round has its own values.
    """

    limit: Annotated[int, Field(ge=1, le=20)] = 12
    """Largest number N of clients in a round; a round takes 2^N evaluations."""

    def estimate(self, game: Game, generator: torch.Generator) -> ValueEstimate:
        if game.players > self.limit:
            raise CelmError(
                f"exact Shapley values need 2^N evaluations, and N is above 'rule.limit' = {self.limit}:"
                f" {game.players}",
                "raise the limit, to 20 at most, or use 'gtg_shapley' or 'tmc_shapley'",
            )
        return ValueEstimate(shapley_values(game))


def shapley_values(game: Game) -> list[float]:
    """Return φ of each player.

    >>> shapley_values(Game(2, lambda coalitions: [[0.0, 1.0, 2.0, 5.0][coalition] for coalition in coalitions]))
    [2.0, 3.0]
    """
    N = game.players
    coalitions = np.arange(1 << N)
    coalition_values = np.array(game.values(coalitions.tolist()))
    sizes = ((coalitions[:, None] >> np.arange(N)) & 1).sum(axis=1)
    probability = np.array([1 / (N * math.comb(N - 1, size)) for size in range(N)])
    values = []
    for player in range(N):
        coalitions_without = coalitions[(coalitions >> player) & 1 == 0]
        contributions = (
            coalition_values[coalitions_without | (1 << player)] - coalition_values[coalitions_without]
        )
        # An exact sum does not depend on the order of the clients: equal clients get equal values.
        values.append(math.fsum((probability[sizes[coalitions_without]] * contributions).tolist()))
    return values
