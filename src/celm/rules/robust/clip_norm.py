"""Norm clipping: no update is longer than a bound.

    Δ_i = w_i - (what i was delivered)        w_i ← delivered + Δ_i · min(1, bound / ||Δ_i||)

The bound is `norm`, or the median length of the round's updates. Updates of length zero have no say in that
median: where most clients return what they were sent, it would be zero and erase the work of the others. Lengths
are over all floating tensors, the head among them, in float64; integer and boolean buffers stay the client's own.
An update too long for float64 is left out.

Reference: Sun, Kairouz, Suresh & McMahan, Can You Really Backdoor Federated Learning?, 2019.
"""

from __future__ import annotations

import math
import statistics
from dataclasses import dataclass, replace
from typing import Annotated

from pydantic import Field

from celm.models.deltas import difference, length, moved
from celm.models.state import StateDict
from celm.rules.exchange import Round, Update
from celm.rules.robust.filter import Filter, Filtered


@dataclass(frozen=True)
class ClipNorm(Filter):
    """Shortens updates longer than a bound, by default the median length."""

    norm: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = None
    """The greatest length of an update; by default the median length of those in the round that are not zero."""

    def apply(self, round: Round) -> Filtered:
        lengths = {name: length(step(round, name)) for name in round.clients}
        finite = [value for value in lengths.values() if math.isfinite(value)]
        bound = self.norm or statistics.median([value for value in finite if value > 0] or [0.0])
        updates: dict[str, Update] = {}
        excluded: dict[str, str] = {}
        for name, update in round.updates.items():
            if not math.isfinite(lengths[name]):
                excluded[name] = "its update has no finite length"
            elif lengths[name] > bound:
                updates[name] = replace(update, model=shortened(round, name, bound / lengths[name]))
            else:
                updates[name] = update
        return Filtered(replace(round, updates=updates), excluded)


def step(round: Round, name: str) -> StateDict:
    """Δ of a client, in float64: in float32 the difference of two finite models may be infinite."""
    return difference(wide(round.updates[name].model), wide(round.delivered[name].model))


def shortened(round: Round, name: str, scale: float) -> StateDict:
    model = round.updates[name].model
    reached = moved(wide(round.delivered[name].model), step(round, name), scale)
    return {
        key: reached[key].to(tensor) if tensor.is_floating_point() else tensor
        for key, tensor in model.items()
    }


def wide(state: StateDict) -> StateDict:
    return {name: tensor.double() if tensor.is_floating_point() else tensor for name, tensor in state.items()}
