"""CoAst: similarity of an update to the global updates of later rounds.

    Δ_i,t = w_i - the model sent to client i               in round t
    G_t   = w_g,t+1 - w_g,t                                the global update of round t
    Q(·)                                                   signs of the largest entries of each tensor, 0 elsewhere
    V_i   = Σ_t Σ_{k=1..H} cos(Q(Δ_i,t), Q(G_t+k))         over the rounds t of client i;  H = `horizon`
    a_i   = max(0, V_i) / Σ_j max(0, V_j)                  equal if no value is positive;  w_g ← Σ_i a_i w_i

No validation data: an update is good if later rounds go the same way. The model of a round is known one round later,
so G_t+k adds to V in round t + k + 1. The first two rounds have no scores. Scores are the positive parts of what a
round adds, over the present clients. Absent clients gain, too, by the updates that they sent before.

Reference: Wu, Zhang, Li, Xu & Zhong, CoAst: Validation-Free Contribution Assessment for Federated Learning based on
Cross-Round Valuation, ACM Multimedia 2024. We could read its abstract only, which names the two ideas, ternary
weights and later global updates. Ours are: updates in place of local parameters, whose common part says nothing about
a client; the cosine; `keep` and `horizon`. Only parameters have a direction. Newcomers start at the mean V.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, ClassVar

import torch
from pydantic import Field
from torch import Tensor

from celm.base.client_order import natural_sorted
from celm.models.state_dict import StateDict
from celm.models.state_ops import flatten
from celm.rules.coalitions import CoalitionState, positive_shares, weighting_from_values
from celm.rules.messages import RoundData
from celm.rules.rule import Rule, ServerContext, WeightingResult
from celm.rules.update_ops import client_delta, parameter_names, top_fraction


@dataclass(frozen=True)
class CoastState:
    """V, and what later rounds compare with."""

    parameters: tuple[str, ...] = ()
    values: CoalitionState = field(default_factory=CoalitionState)
    start_model: StateDict = field(default_factory=dict)
    """Parameters of the global model at the start of the last round; empty before the first."""
    signs: tuple[Mapping[str, Tensor], ...] = ()
    """Q of the updates of the last H + 1 rounds by client, the last round at the end; int8 `[P]`."""


@dataclass(frozen=True)
class Coast(Rule[CoastState]):
    """Similarity of updates to the global updates of later rounds."""

    state_type: ClassVar[type] = CoastState

    keep: Annotated[float, Field(gt=0, le=1)] = 0.1
    """Fraction of each tensor's entries that count, the largest by magnitude."""
    horizon: Annotated[int, Field(ge=1)] = 5
    """H, the number of later global updates that an update is compared with."""

    def init(self, context: ServerContext) -> CoastState:
        return CoastState(parameter_names(context))

    def compute_weights(
        self, state: CoastState, context: ServerContext, round: RoundData
    ) -> WeightingResult[CoastState]:
        names = natural_sorted(round.clients)
        start_model = {name: round.global_model[name] for name in state.parameters}
        added: dict[str, float] = {}
        if state.start_model:
            step = {
                name: torch.nan_to_num(start_model[name] - state.start_model[name]) for name in start_model
            }
            added = self._similarities(state, self._quantise(step))
        values = state.values.with_clients(names).add(added, decay=1.0)
        signs = {name: self._quantise(client_delta(round, name, state.parameters)) for name in names}
        scores = positive_shares({name: added.get(name, 0.0) for name in names}) if added else None
        recent_signs = (*state.signs, signs)[-self.horizon - 1 :]
        next_state = CoastState(state.parameters, values, start_model, recent_signs)
        return weighting_from_values(next_state, values, names, scores, {"values": added})

    def _similarities(self, state: CoastState, global_signs: Tensor) -> dict[str, float]:
        """Return what the last global update adds to V, for the clients of the rounds before it."""
        added: dict[str, list[float]] = {}
        for signs in state.signs[:-1]:  # the last round made this update, and does not count
            for name, client_signs in signs.items():
                added.setdefault(name, []).append(_cosine(client_signs, global_signs))
        return {name: math.fsum(values) for name, values in added.items()}

    def _quantise(self, delta: StateDict) -> Tensor:
        return flatten(top_fraction(delta, self.keep)).sign().to(torch.int8)


def _cosine(one: Tensor, other: Tensor) -> float:
    """Return the cosine of two vectors of signs; 0 if one of them is 0. Its counts are exact."""
    counts = int(one.count_nonzero()) * int(other.count_nonzero())
    return int((one * other).sum(dtype=torch.int64)) / math.sqrt(counts) if counts else 0.0
