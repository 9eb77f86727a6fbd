"""Norm clipping: a bound on the norm of updates.

    Δ_i = w_i - m_i,   w_i ← m_i + Δ_i · min(1, bound / ||Δ_i||)        m_i: the model sent to client i

The bound is `norm`, or the median norm of the round's updates. Zero updates do not count in that median: if most
clients return the model they received, it would be zero and erase the other updates. Norms are over all floating
tensors, including the head, in float64. Integer and boolean buffers are the client's own. An update whose norm
exceeds float64 is excluded.

Reference: Sun, Kairouz, Suresh & McMahan, Can You Really Backdoor Federated Learning?, 2019.
"""

from __future__ import annotations

import math
import statistics
from dataclasses import dataclass, replace
from functools import partial
from typing import Annotated

from pydantic import Field

from celm.models.state_dict import StateDict
from celm.models.state_ops import add_scaled, difference, l2_norm
from celm.rules.messages import ClientUpdate, RoundData
from celm.rules.robust.filter import Filter, FilterResult


@dataclass(frozen=True)
class ClipNorm(Filter):
    """Clipping of updates to a norm, by default the median norm."""

    norm: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = None
    """Largest norm of an update; by default the median norm of the nonzero updates in the round."""

    def apply(self, round: RoundData) -> FilterResult:
        norms = {
            name: l2_norm(_float64_delta(update.model, round.messages[name].model))
            for name, update in round.updates.items()
        }
        finite_norms = [value for value in norms.values() if math.isfinite(value)]
        bound = self.norm or statistics.median([value for value in finite_norms if value > 0] or [0.0])
        updates: dict[str, ClientUpdate] = {}
        excluded: dict[str, str] = {}
        clip_factors: dict[str, float] = {}
        for name, update in round.updates.items():
            if not math.isfinite(norms[name]):
                excluded[name] = "the norm of its update is not finite"
            elif norms[name] > bound:
                clip_factors[name] = bound / norms[name]
                received = round.messages[name].model
                updates[name] = update.with_model(
                    partial(_scale_update, update, received, clip_factors[name])
                )
            else:
                updates[name] = update
        return FilterResult(replace(round, updates=updates), excluded, clip_factors)


def _float64_delta(model: StateDict, received: StateDict) -> StateDict:
    """Return Δ_i in float64: in float32 the difference of two finite models may be infinite."""
    return difference(_to_float64(model), _to_float64(received))


def _scale_update(update: ClientUpdate, received: StateDict, scale: float) -> StateDict:
    """Return the model of a client with Δ_i multiplied by `scale`."""
    model = update.model
    clipped = add_scaled(_to_float64(received), _float64_delta(model, received), scale)
    return {
        key: clipped[key].to(tensor) if tensor.is_floating_point() else tensor
        for key, tensor in model.items()
    }


def _to_float64(state: StateDict) -> StateDict:
    return {name: tensor.double() if tensor.is_floating_point() else tensor for name, tensor in state.items()}
