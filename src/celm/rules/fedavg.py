"""Federated averaging.

    w_g = Σ_i p_i w_i        p_i = 1/N, or n_i / Σ_j n_j with `by_size`

Reference: McMahan et al., Communication-Efficient Learning of Deep Networks from Decentralized Data,
AISTATS 2017. Sizes are what clients say they are, so the default weighs all the same, as in the CELM paper.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar

from celm.base.names import in_order
from celm.method.weights import normalised
from celm.rules.exchange import Round
from celm.rules.rule import Facts, Rule, Weighing


@dataclass(frozen=True)
class Known:
    """The last size each client reported; 1 for all where sizes do not count."""

    sizes: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class FedAvg(Rule[Known]):
    """Plain averaging: all clients the same, or by reported size."""

    state_type: ClassVar[type] = Known

    by_size: bool = False
    """Weigh by the number of samples each client reports."""

    def init(self, federation: Facts) -> Known:
        return Known()

    def weigh(self, state: Known, federation: Facts, round: Round) -> Weighing[Known]:
        sizes = {name: float(update.size) if self.by_size else 1.0 for name, update in round.updates.items()}
        known = {**state.sizes, **sizes}
        state = Known({name: known[name] for name in in_order(known)})
        return Weighing(state, weights=normalised(sizes), standing=normalised(state.sizes))
