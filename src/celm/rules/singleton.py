"""Singleton: the utility that a client reaches alone.

    φ_i = v({i}) - v(∅)        v as in `celm.rules.coalitions`

A round takes N + 1 evaluations, and one of the average of all clients for the record. No method with validation data
is cheaper. The value of a client does not depend on the others: twins both count in full, and so does a client that
knows what all others know. A specialist for one class can be worth less than the start model.
Reference: the individual value of Shapley, A Value for n-Person Games, 1953; as a baseline in federated learning,
Song, Tong & Wei, Profit Allocation for Federated Learning, IEEE Big Data 2019.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from celm.rules.coalitions import CoalitionRule, Game, ValueEstimate


@dataclass(frozen=True)
class Singleton(CoalitionRule):
    """Utility on validation data that each client reaches alone."""

    def estimate(self, game: Game, generator: torch.Generator) -> ValueEstimate:
        return ValueEstimate(singleton_values(game))


def singleton_values(game: Game) -> list[float]:
    """Return φ of each player.

    >>> singleton_values(Game(2, lambda coalitions: [[0.5, 1.0, 2.0, 5.0][coalition] for coalition in coalitions]))
    [0.5, 1.5]
    """
    empty_value, *alone = game.values([0, *(1 << player for player in range(game.players))])
    return [value - empty_value for value in alone]
