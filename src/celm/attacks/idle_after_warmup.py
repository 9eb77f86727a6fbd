"""A client that trains while contributions are estimated and then becomes a free-rider.

    w_i = the trained model                                              in its honest rounds
    w_i = w_received + strength * mean|w_received - w_before| * N(0, 1)  afterwards, as in `copy_global`

Weights that are frozen after a warm-up reward it for the rest of the run.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from pydantic import Field

from celm.attacks.attack import AttackContext
from celm.attacks.copy_global import CopyGlobal
from celm.core.weights import warmup_rounds
from celm.models.state_dict import StateDict


@dataclass(frozen=True)
class IdleAfterWarmup(CopyGlobal):
    """Honest in the first rounds; then returns the received model.

    Noise, scaled by `strength`, can be added to the model.
    """

    honest: Annotated[int, Field(ge=0)] | None = None
    """Number of honest rounds at the start; by default 5 % of all, CELM's default warm-up."""

    def trains_in(self, round_number: int, rounds: int) -> bool:
        return round_number <= (warmup_rounds(rounds, 0.05) if self.honest is None else self.honest)

    def poison(self, context: AttackContext) -> StateDict:
        if self.trains_in(context.round_number, context.server_context.rounds):
            return context.trained_model
        return super().poison(context)
