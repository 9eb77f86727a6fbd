"""Federated averaging.

    w_g = Σ_i p_i w_i        p_i = 1/N, or n_i / Σ_j n_j with `by_size`

Reference: McMahan et al., Communication-Efficient Learning of Deep Networks from Decentralized Data,
AISTATS 2017. Sizes are self-reported, so the default weights are equal, as in the CELM paper.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar

from celm.base.client_order import natural_sorted
from celm.core.weights import normalise_weights
from celm.rules.messages import RoundData
from celm.rules.rule import Rule, ServerContext, WeightingResult


@dataclass(frozen=True)
class FedAvgState:
    """The last size that each client reported; 1 for all without `by_size`."""

    sizes: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class FedAvg(Rule[FedAvgState]):
    """Plain averaging: equal weights, or weights by reported size."""

    state_type: ClassVar[type] = FedAvgState

    by_size: bool = False
    """Whether weights are proportional to the reported numbers of samples."""

    def init(self, context: ServerContext) -> FedAvgState:
        return FedAvgState()

    def compute_weights(
        self, state: FedAvgState, context: ServerContext, round: RoundData
    ) -> WeightingResult[FedAvgState]:
        sizes = {
            name: float(update.num_examples) if self.by_size else 1.0
            for name, update in round.updates.items()
        }
        all_sizes = {**state.sizes, **sizes}
        state = FedAvgState({name: all_sizes[name] for name in natural_sorted(all_sizes)})
        return WeightingResult(
            state, aggregation_weights=normalise_weights(sizes), client_weights=normalise_weights(state.sizes)
        )
