"""Normalised averaging: clients that take more steps do not pull harder.

    Δ_i = w_i - what client i was sent             a_i = τ_i for plain SGD, else
    w_g ← w_g + τ Σ_i p_i Δ_i / a_i                a_i = (τ_i - ρ (1 - ρ^τ_i) / (1 - ρ)) / (1 - ρ) with momentum ρ
    τ = Σ_i p_i a_i                                p_i = 1/N, or n_i / Σ_j n_j with `by_size` (the source's)

Reference: Wang et al., Tackling the Objective Inconsistency Problem in Heterogeneous Federated Optimization,
NeurIPS 2020. With equal steps it is FedAvg. All the same by default, as our FedAvg is, since the two are there
to be compared.

A client that took no step has no direction: it counts for nothing, and the others' p_i are scaled to sum 1;
where nobody took one, the global model stays. Buffers are averaged with p as in FedAvg. Steps are what
clients say: one that claims fewer than it took is amplified by τ / a_i. Not here: the source's server momentum
(off by default there too) and its a_i for proximal objectives.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Annotated, ClassVar

from pydantic import Field

from celm.base.names import in_order
from celm.method.weights import normalised
from celm.models.state import StateDict
from celm.rules.exchange import Round
from celm.rules.rule import Facts, Needs, Rule, Weighing
from celm.rules.updates import change, parameter_names


@dataclass(frozen=True)
class Portions:
    """The last p_i of each client, not yet scaled; 0 for one that took no step."""

    parameters: tuple[str, ...] = ()
    of: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class FedNova(Rule[Portions]):
    """Averaging of updates normalised by the local steps behind them."""

    needs: ClassVar[Needs] = Needs(extras="the number of local steps")
    state_type: ClassVar[type] = Portions

    momentum: Annotated[float, Field(ge=0, lt=1)] = 0.0
    """ρ of the clients' SGD; must be what they train with."""
    by_size: bool = False
    """Weigh by the number of samples each client reports."""

    def init(self, federation: Facts) -> Portions:
        return Portions(parameter_names(federation))

    def weigh(self, state: Portions, federation: Facts, round: Round) -> Weighing[Portions]:
        portions = {
            name: 0.0 if update.steps <= 0 else float(max(update.size, 0)) if self.by_size else 1.0
            for name, update in round.updates.items()
        }
        known = {**state.of, **portions}
        state = replace(state, of={name: known[name] for name in in_order(known)})
        weights = normalised(portions)
        lengths = {name: accumulated(update.steps, self.momentum) for name, update in round.updates.items()}
        return Weighing(
            state,
            weights=weights,
            standing=normalised(state.of),
            diagnostics={"lengths": lengths, "effective": mean_length(weights, lengths)},
        )

    def merge(self, state: Portions, round: Round, weighing: Weighing[Portions]) -> StateDict:
        moving = [name for name in round.clients if round.updates[name].steps > 0]
        if not moving:
            return round.start
        weights = normalised({name: weighing.weights[name] for name in moving})
        lengths = {name: accumulated(round.updates[name].steps, self.momentum) for name in moving}
        effective = mean_length(weights, lengths)
        # As models, w_g + τ Δ_i / a_i beside the client's own buffers, so that one average does for all.
        models: list[StateDict] = []
        for name in moving:
            step = change(round, name, state.parameters)
            scale = effective / lengths[name]
            normal = {key: round.start[key].add(tensor, alpha=scale) for key, tensor in step.items()}
            models.append({**round.updates[name].model, **normal})
        return round.average(models, list(weights.values()))


def accumulated(steps: int, momentum: float) -> float:
    """a_i: how far the gradients of `steps` local steps add up.

    >>> accumulated(3, 0.0), accumulated(2, 0.5)
    (3.0, 2.5)
    """
    if steps <= 0:
        return 0.0
    return (steps - momentum * (1 - momentum**steps) / (1 - momentum)) / (1 - momentum)


def mean_length(weights: Mapping[str, float], lengths: Mapping[str, float]) -> float:
    return math.fsum(weight * lengths[name] for name, weight in weights.items())
