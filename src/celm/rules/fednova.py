"""Normalised averaging: clients with more local steps do not weigh more.

    Δ_i = w_i - the model sent to client i         a_i = τ_i for plain SGD, else
    w_g ← w_g + τ Σ_i p_i Δ_i / a_i                a_i = (τ_i - ρ (1 - ρ^τ_i) / (1 - ρ)) / (1 - ρ) with momentum ρ
    τ = Σ_i p_i a_i                                p_i = 1/N, or n_i / Σ_j n_j with `by_size` (the source's)

Reference: Wang et al., Tackling the Objective Inconsistency Problem in Heterogeneous Federated Optimization,
NeurIPS 2020. With equal steps it is FedAvg. The default p_i are equal, as in our FedAvg, so that the two can be
compared.

A client without steps has no direction: its weight is 0, and the other p_i are scaled to sum 1. If no client took a
step, the global model does not change. Buffers are averaged with p, as in FedAvg. Steps are self-reported: the update
of a client that reports too few is amplified by τ / a_i. Deviations: the source's server momentum (off by default
there) and its a_i for proximal objectives are not implemented.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Annotated, ClassVar

from pydantic import Field

from celm.base.client_order import natural_sorted
from celm.core.weights import normalise_weights
from celm.models.state_dict import StateDict
from celm.rules.messages import RoundData
from celm.rules.rule import Requirements, Rule, ServerContext, WeightingResult
from celm.rules.update_ops import client_delta, parameter_names


@dataclass(frozen=True)
class FedNovaState:
    """The last unscaled p_i of each client; 0 for a client without steps."""

    parameters: tuple[str, ...] = ()
    portions: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class FedNova(Rule[FedNovaState]):
    """Averaging of updates that are normalised by their local steps."""

    requirements: ClassVar[Requirements] = Requirements(extra_exchange="the number of local steps")
    state_type: ClassVar[type] = FedNovaState

    momentum: Annotated[float, Field(ge=0, lt=1)] = 0.0
    """ρ, the momentum of the clients' SGD; must equal `train.momentum`."""
    by_size: bool = False
    """Whether weights are proportional to the reported numbers of samples."""

    def init(self, context: ServerContext) -> FedNovaState:
        return FedNovaState(parameter_names(context))

    def compute_weights(
        self, state: FedNovaState, context: ServerContext, round: RoundData
    ) -> WeightingResult[FedNovaState]:
        portions = {
            name: 0.0
            if update.num_steps <= 0
            else float(max(update.num_examples, 0))
            if self.by_size
            else 1.0
            for name, update in round.updates.items()
        }
        all_portions = {**state.portions, **portions}
        state = replace(state, portions={name: all_portions[name] for name in natural_sorted(all_portions)})
        weights = normalise_weights(portions)
        steps_by_client = {
            name: effective_steps(update.num_steps, self.momentum) for name, update in round.updates.items()
        }
        return WeightingResult(
            state,
            aggregation_weights=weights,
            client_weights=normalise_weights(state.portions),
            diagnostics={
                "lengths": steps_by_client,
                "effective": _mean_effective_steps(weights, steps_by_client),
            },
        )

    def aggregate(
        self, state: FedNovaState, round: RoundData, result: WeightingResult[FedNovaState]
    ) -> StateDict:
        trained_clients = [name for name in round.clients if round.updates[name].num_steps > 0]
        if not trained_clients:
            return round.global_model
        weights = normalise_weights({name: result.aggregation_weights[name] for name in trained_clients})
        steps_by_client = {
            name: effective_steps(round.updates[name].num_steps, self.momentum) for name in trained_clients
        }
        mean_steps = _mean_effective_steps(weights, steps_by_client)
        # Models w_g + τ Δ_i / a_i with the client's buffers, so that one average covers parameters and buffers.
        models: list[StateDict] = []
        for name in trained_clients:
            delta = client_delta(round, name, state.parameters)
            scale = mean_steps / steps_by_client[name]
            normalised_parameters = {
                key: round.global_model[key].add(tensor, alpha=scale) for key, tensor in delta.items()
            }
            models.append({**round.updates[name].model, **normalised_parameters})
        return round.average(models, list(weights.values()))


def effective_steps(steps: int, momentum: float) -> float:
    """Return a_i, the effective number of `steps` local steps.

    >>> effective_steps(3, 0.0), effective_steps(2, 0.5)
    (3.0, 2.5)
    """
    if steps <= 0:
        return 0.0
    return (steps - momentum * (1 - momentum**steps) / (1 - momentum)) / (1 - momentum)


def _mean_effective_steps(weights: Mapping[str, float], steps_by_client: Mapping[str, float]) -> float:
    return math.fsum(weight * steps_by_client[name] for name, weight in weights.items())
