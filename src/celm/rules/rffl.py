"""RFFL: reputation by cosine, and removal of clients whose reputation is too low.

    u_i = Δ_i, clipped to norm Γ                           Δ_i = w_i - m_i;  m_i: the model sent to client i
    u = Σ_{i∈R} r_i u_i                                    with the reputations before this round; w_g ← w_g + u
    r_i ← max(α r_i + (1 - α) cos(u_i, u), 0), scaled to sum 1 over R
    from round 11 on: client i with r_i < κ / |R| leaves R for good, and r is scaled again        κ = 1/3
    next model of client i: m_i + u_i + the largest values of u, ⌈q_i size⌉ of each tensor
    q_i = r_i / max_j r_j                                  clients outside R get no values of u

Reference: Xu and Lyu, A Reputation Mechanism Is All You Need: Collaborative Fairness and Adversarial Robustness
in Federated Learning, ICML 2021 workshop on federated learning. We follow the later version of its code, in which
removal starts after ten rounds. Γ = 0.5 is its value for MNIST (0.15 CIFAR-10, 1 text). The first round uses n_i / n as
reputations. The client weights of a round are the new reputations; its models were aggregated with the old ones.

Deviations: in the source r_i can be negative, which can flip the sign of the sum and of all reputations. Our r_i is at
least 0, and equal if all are 0. Ties at the cut are kept, and q_i = 1 keeps all values. The source has no server model;
ours moves by u. Only parameters have a direction; buffers are averaged, and a client keeps its own. The present
clients divide their total reputation among themselves. Absent clients keep theirs and are not removed. A newcomer
starts at the mean of R. R is never emptied. If no present client is in R, the global model does not change and the
weights, which are then unused, are uniform. Results are means over the clients' own models, as in the source.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, ClassVar

from pydantic import Field

from celm.core.weights import ClientWeights, normalise_weights
from celm.models.state_dict import StateDict
from celm.models.state_ops import add_scaled, flatten
from celm.rules.messages import RoundData, ServerMessage
from celm.rules.reputation import remove_low_reputation, share_reputation
from celm.rules.rule import Requirements, Rule, ServerContext, WeightingResult
from celm.rules.update_ops import (
    average_deltas,
    client_delta,
    finite_cosine,
    parameter_names,
    rescale_norm,
    size_weights,
    top_fraction,
)


@dataclass(frozen=True)
class RfflState:
    """The reputations of R, the removed clients, and every client's own model."""

    parameters: tuple[str, ...] = ()
    weights: ClientWeights = field(default_factory=ClientWeights)
    removed: tuple[str, ...] = ()
    models: Mapping[str, StateDict] = field(default_factory=dict)


@dataclass(frozen=True)
class Rffl(Rule[RfflState]):
    """Reputation by cosine; clients with low reputation are removed."""

    requirements: ClassVar[Requirements] = Requirements(sizes=True)
    personal: ClassVar[bool] = True
    state_type: ClassVar[type] = RfflState

    alpha: Annotated[float, Field(ge=0, lt=1)] = 0.95
    """α, the share of the old reputation in the new one."""
    gamma: Annotated[float, Field(ge=0)] = 0.5
    """Γ, the largest norm of an update; 0: no bound."""
    threshold: Annotated[float, Field(ge=0, lt=1)] = 1 / 3
    """κ: clients below this fraction of the mean reputation are removed."""
    patience: Annotated[int, Field(ge=0)] = 10
    """Number of first rounds without removal."""

    @property
    def continues_from_upload(self) -> bool:
        return True

    def init(self, context: ServerContext) -> RfflState:
        return RfflState(parameter_names(context))

    def compute_weights(
        self, state: RfflState, context: ServerContext, round: RoundData
    ) -> WeightingResult[RfflState]:
        names = round.clients
        trusted = [name for name in names if name not in state.removed]
        previous = state.weights.with_clients(trusted)
        is_first = not state.weights.by_client
        weights = size_weights(round) if is_first else previous.restricted_to(trusted)
        weights = (
            {name: weights.get(name, 0.0) for name in names}
            if trusted
            else dict.fromkeys(names, 1 / len(names))
        )
        deltas = {
            name: rescale_norm(client_delta(round, name, state.parameters), self.gamma, lengthen=False)
            for name in names
        }
        client_models = {name: _apply_delta(round, name, delta) for name, delta in deltas.items()}
        similarity: dict[str, float] = {}
        reward: dict[str, float] = {}
        reputation, removed, model = previous, state.removed, round.global_model
        if trusted:
            total = average_deltas(round, {name: deltas[name] for name in trusted}, weights)
            common = {name: total[name] for name in state.parameters}
            model = {**total, **add_scaled({name: round.global_model[name] for name in common}, common)}
            direction = flatten(common)
            similarity = {name: finite_cosine(flatten(delta), direction) for name, delta in deltas.items()}
            old_reputation = dict.fromkeys(names, 0.0) if is_first else weights
            updated = {
                name: max(self.alpha * old_reputation[name] + (1 - self.alpha) * similarity[name], 0.0)
                for name in trusted
            }
            reputation = share_reputation(previous, updated)
            if round.round_number > self.patience:
                reputation, removed_now = remove_low_reputation(reputation, trusted, self.threshold)
                removed += removed_now
            highest = max(reputation.by_client.get(name, 0.0) for name in trusted)
            for name in trusted:
                reward[name] = reputation.by_client.get(name, 0.0) / highest if highest > 0 else 0.0
                client_models[name] = add_scaled(client_models[name], top_fraction(common, reward[name]))
        return WeightingResult(
            RfflState(state.parameters, reputation, removed, {**state.models, **client_models}),
            aggregation_weights=weights,
            client_weights=normalise_weights({**reputation.by_client, **dict.fromkeys(removed, 0.0)}),
            scores=normalise_weights({name: max(similarity.get(name, 0.0), 0.0) for name in names}),
            model=model,
            diagnostics={"similarity": similarity, "reward": reward, "removed": list(removed)},
        )

    def message_for(self, state: RfflState, model: StateDict, client: str) -> ServerMessage:
        return ServerMessage(state.models.get(client, model))


def _apply_delta(round: RoundData, client: str, delta: StateDict) -> StateDict:
    """Return the model sent to the client plus `delta`, with the client's own buffers."""
    received = round.messages[client].model
    return {**round.updates[client].model, **add_scaled({name: received[name] for name in delta}, delta)}
