"""Leave-one-out: the utility that is lost without a client.

    φ_i = v(N) - v(N \\ i)        v as in `celm.rules.coalitions`

A round takes N + 1 evaluations, and one of the start model, which is v(∅). Two clients with the same data make each
other superfluous, so both get almost nothing. The method is cheap, but its shares are not fair.
Reference: Cook, Detection of Influential Observation in Linear Regression, Technometrics 1977; in federated
learning, Wang, Dang & Zhou, Measure Contribution of Participants in Federated Learning, IEEE Big Data 2019.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from celm.rules.coalitions import CoalitionRule, Game, ValueEstimate


@dataclass(frozen=True)
class LeaveOneOut(CoalitionRule):
    """Utility on validation data that is lost without each client."""

    def estimate(self, game: Game, generator: torch.Generator) -> ValueEstimate:
        return ValueEstimate(leave_one_out_values(game))


def leave_one_out_values(game: Game) -> list[float]:
    """Return φ of each player."""
    coalitions_without = [game.grand_coalition & ~(1 << player) for player in range(game.players)]
    grand_value, *values_without = game.values([game.grand_coalition, *coalitions_without])
    return [grand_value - value for value in values_without]
