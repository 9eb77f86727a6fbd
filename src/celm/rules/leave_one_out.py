"""Leave-one-out: what is lost without a client.

    φ_i = v(N) - v(N \\ i)        v as in `celm.rules.coalitions`

N + 1 evaluations a round, and the start model's, which is what the absence of a single client leaves. Two clients
who hold the same data make each other superfluous, and both get about nothing: cheap, but not a fair share.
Reference: Cook, Detection of Influential Observation in Linear Regression, Technometrics 1977; in federated
learning, Wang, Dang & Zhou, Measure Contribution of Participants in Federated Learning, IEEE Big Data 2019.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from celm.rules.coalitions import CoalitionRule, Estimate, Game


@dataclass(frozen=True)
class LeaveOneOut(CoalitionRule):
    """What the averaged model loses on validation data without each client."""

    def estimate(self, game: Game, draw: torch.Generator) -> Estimate:
        return Estimate(leave_one_out(game))


def leave_one_out(game: Game) -> list[float]:
    """φ, by player."""
    without = [game.everyone & ~(1 << player) for player in range(game.players)]
    everyone, *others = game.values([game.everyone, *without])
    return [everyone - value for value in others]
