"""In-run Shapley values: the gain of a round in validation loss, expanded to first or second order.

    Δ_i = w_i - w_g                                        w_g: the global model at the start of the round
    first order   φ_i = -p_i <∇L(w_g), Δ_i>                p_i = 1/N; L: mean cross-entropy on validation data
    second order  φ_i = -p_i <∇L(w_g), Δ_i> - (p_i/2) Δ_i' H Σ_j p_j Δ_j        H = ∇²L(w_g)
    V_i ← λ V_i + φ_i                                      λ = `decay`; V of absent clients does not change
    a_i = max(0, V_i) / Σ_j max(0, V_j)                    w_g ← Σ_i a_i w_i

They are the Shapley values of the game v(S) = L(w_g) - L(w_g + Σ_{i∈S} p_i Δ_i), with L replaced by its Taylor
polynomial, so Σ_i φ_i is the polynomial's gain. A round takes one gradient, and for the second order one product with
H, however many clients there are. No coalition is evaluated. Local training takes long steps, of which the second
order sees how they overlap.
References: Wang, Mittal, Song & Jia, Data Shapley in One Training Run, ICLR 2025; for federated rounds, Wang et al.,
Efficient Participant Contribution Evaluation for Horizontal and Vertical Federated Learning, ICDE 2022 (DIG-FL).
Weights, newcomers and scores are those of `celm.rules.coalitions`. While heads are local, Δ_i contains a client's own
head, as the average does. A value that is not finite counts as 0.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor

from celm.base.client_order import natural_sorted
from celm.base.errors import CelmError
from celm.rules.coalitions import CoalitionState, positive_shares, weighting_from_values
from celm.rules.messages import RoundData, Validation
from celm.rules.rule import Requirements, Rule, ServerContext, WeightingResult
from celm.rules.update_ops import parameter_names


@dataclass(frozen=True)
class InRun(Rule[CoalitionState]):
    """Gain in validation loss, from derivatives at the global model."""

    requirements: ClassVar[Requirements] = Requirements(validation=True)
    state_type: ClassVar[type] = CoalitionState

    order: Literal[1, 2] = 1
    """Order of the expansion."""
    decay: Annotated[float, Field(ge=0, le=1)] = 1.0
    """λ, the factor on a client's accumulated value in each round in which it takes part."""

    def init(self, context: ServerContext) -> CoalitionState:
        return CoalitionState()

    def compute_weights(
        self, state: CoalitionState, context: ServerContext, round: RoundData
    ) -> WeightingResult[CoalitionState]:
        names = natural_sorted(round.clients)
        values, loss = in_run_values(round, parameter_names(context), self.order)
        state = state.add(values, self.decay)
        scores, diagnostics = positive_shares(values), {"values": values, "validation_loss": loss}
        return weighting_from_values(state, state, names, scores, diagnostics)


def in_run_values(
    round: RoundData, parameters: tuple[str, ...], order: int
) -> tuple[dict[str, float], float | None]:
    """Return φ of each client, and the validation loss at the start of the round; None if it is not finite."""
    if not isinstance(round.validate, Validation):
        raise CelmError(
            "rule 'in_run' needs the loss on validation data, and the federation has none",
            "set 'run.validation'",
        )
    start = round.global_model
    share = 1 / len(round.clients)
    names = natural_sorted(round.clients)
    steps = {
        name: {
            key: share * (round.updates[name].model[key].double() - start[key].double()) for key in parameters
        }
        for name in names
    }
    total = {key: torch.stack([step[key] for step in steps.values()]).sum(0) for key in parameters}
    found = round.validate.differentiate(start, total if order == 2 else None)
    values = {
        name: -_dot(found.gradient, step) - 0.5 * _dot(found.curvature, step) for name, step in steps.items()
    }
    loss = found.loss if math.isfinite(found.loss) else None
    return {name: value if math.isfinite(value) else 0.0 for name, value in values.items()}, loss


def _dot(derivative: Mapping[str, Tensor], step: Mapping[str, Tensor]) -> float:
    return float(sum((values * step[name].to(values)).sum() for name, values in derivative.items()))
