"""The warm-up: the rounds in which clients are probed and weights change.

FixedWarmup      T_w rounds, as in the paper
UntilConverged   at most T_w rounds; ends after the first round t >= t_min with max_i |c_i(t) - c_i(t-1)| <= tolerance
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from celm.core.weights import ClientWeights


@dataclass(frozen=True)
class WarmupState:
    """The early end of the warm-up, if it ended before T_w."""

    ended_at: int | None = None
    """The last round of a warm-up that ended early."""


class Warmup(Protocol):
    """The rule by which the warm-up ends."""

    def last_round(self, state: WarmupState) -> int:
        """Return the last round of the warm-up: T_w, unless it ended early."""

    def update(
        self, state: WarmupState, before: ClientWeights, after: ClientWeights, round_number: int
    ) -> WarmupState:
        """Return the state after a warm-up round with evidence that changed the weights."""


@dataclass(frozen=True)
class FixedWarmup:
    """T_w rounds."""

    rounds: int

    def last_round(self, state: WarmupState) -> int:
        return state.ended_at or self.rounds

    def update(
        self, state: WarmupState, before: ClientWeights, after: ClientWeights, round_number: int
    ) -> WarmupState:
        return state


@dataclass(frozen=True)
class UntilConverged(FixedWarmup):
    """At most T_w rounds, at least `min_rounds`, until no weight changes by more than `tolerance`."""

    tolerance: float
    min_rounds: int

    def update(
        self, state: WarmupState, before: ClientWeights, after: ClientWeights, round_number: int
    ) -> WarmupState:
        if round_number < self.min_rounds or _largest_change(before, after) > self.tolerance:
            return state
        return WarmupState(round_number)


def make_warmup(rounds: int, tolerance: float | None, min_rounds: int) -> Warmup:
    """Return a warm-up of T_w rounds; with a tolerance, one that may end early."""
    return FixedWarmup(rounds) if tolerance is None else UntilConverged(rounds, tolerance, min_rounds)


def _largest_change(before: ClientWeights, after: ClientWeights) -> float:
    """Return the largest change of a weight. A new client is compared with the weight at which it started."""
    previous = before.with_clients(list(after.by_client)).by_client
    return max(abs(weight - previous[name]) for name, weight in after.by_client.items())
