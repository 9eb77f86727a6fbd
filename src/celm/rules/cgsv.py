"""CGSV: contribution is the cosine of a client's update with the common update; rewards are models.

    u_i = Γ Δ_i / (||Δ_i|| + 1e-7)                 Δ_i = w_i - the model sent to client i
    u = Σ_i r_i u_i                                with the reputations before this round; w_g ← w_g + u
    φ_i = cos(u_i, u)
    r_i ← max(α r_i + (1 - α) φ_i, 1e-3), scaled to sum 1
    q_i = tanh(β r_i) / max_j tanh(β r_j)          client i is rewarded with u's largest values by magnitude,
                                                   ⌈q_i size⌉ of each tensor

Reference: Xu et al., Gradient-Driven Rewards to Guarantee Fairness in Collaborative Machine Learning,
NeurIPS 2021, and its code. The client weights of a round are the new reputations; its models were aggregated with
the old ones. Three protocols:

- `official`, the source's: every client has its own model. After a round the client returns to its model before
  training and gets its reward. Reputation starts at 0; the first round uses n_i / n instead.
- `keep`, from earlier code of the CELM paper's authors: the client keeps its training and gets its reward on top.
  Clients and server drift apart, which explains most of the collapsed column of their tables. Their Γ shortens but
  never lengthens updates; by default there is no Γ.
- `aggregation_only`: all clients start from the global model and reputations are plain aggregation weights,
  1/N in the first round; no Γ by default. This is the fair baseline.

The default is the source's protocol, with its Γ for MNIST (0.15 for CIFAR-10). The reported accuracy is that of the
server's model; `client_accuracy` of the last round has the clients' own.

Deviations: only parameters have a direction, buffers are averaged. Ties at the cut are kept, and q_i = 1 keeps all
values (the source drops the smallest of each tensor). The present clients divide their total reputation among
themselves; absent clients keep their reputation and model. A zero update has cosine 0, so it gets the floor.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, ClassVar, Literal

from pydantic import Field

from celm.core.weights import ClientWeights, normalise_weights
from celm.models.state_dict import StateDict
from celm.models.state_ops import add_scaled, flatten
from celm.rules.messages import RoundData, ServerMessage
from celm.rules.reputation import share_reputation
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
class CgsvState:
    """The reputation of every client seen, and its own model unless the protocol is `aggregation_only`."""

    parameters: tuple[str, ...] = ()
    weights: ClientWeights = field(default_factory=ClientWeights)
    models: Mapping[str, StateDict] = field(default_factory=dict)


@dataclass(frozen=True)
class Cgsv(Rule[CgsvState]):
    """Reputation by cosine with the common update.

    The cosine approximates the client's cosine gradient Shapley value.
    """

    requirements: ClassVar[Requirements] = Requirements(sizes=True)
    state_type: ClassVar[type] = CgsvState

    protocol: Literal["official", "keep", "aggregation_only"] = "official"
    """Start of clients: their model before training, their trained model, or the global model."""
    alpha: Annotated[float, Field(ge=0, lt=1)] = 0.95
    """α, the share of the old reputation in the new one."""
    beta: Annotated[float, Field(gt=0)] = 1.0
    """β, the altruism: a larger value makes rewards more equal."""
    gamma: Annotated[float, Field(ge=0)] | None = None
    """Γ: the norm of updates if official, else a bound on it; 0: none. Default 0.5 if official, else 0."""
    floor: Annotated[float, Field(gt=0)] = 1e-3
    """Smallest reputation before scaling."""

    @property
    def continues_from_upload(self) -> bool:
        return self.protocol == "keep"

    def init(self, context: ServerContext) -> CgsvState:
        return CgsvState(parameter_names(context))

    def compute_weights(
        self, state: CgsvState, context: ServerContext, round: RoundData
    ) -> WeightingResult[CgsvState]:
        names = round.clients
        previous = state.weights.with_clients(names)
        is_first = not state.weights.by_client
        weights = self._initial_weights(round) if is_first else previous.restricted_to(names)
        deltas = self._scaled_deltas(state, round)
        total = average_deltas(round, deltas, weights)
        common = {name: total[name] for name in state.parameters}
        direction = flatten(common)
        similarity = {name: finite_cosine(flatten(delta), direction) for name, delta in deltas.items()}

        old_reputation = dict.fromkeys(names, 0.0) if is_first else weights
        updated = {
            name: max(self.alpha * old_reputation[name] + (1 - self.alpha) * similarity[name], self.floor)
            for name in names
        }
        reputation = share_reputation(previous, updated)
        altruism = {name: math.tanh(self.beta * reputation.by_client[name]) for name in names}
        highest = max(altruism.values())
        reward = {name: value / highest if highest > 0 else 1.0 for name, value in altruism.items()}
        models = dict(state.models)
        if self.protocol != "aggregation_only":
            buffers = {name: tensor for name, tensor in total.items() if name not in common}
            for name in names:
                received_model = {**round.messages[name].model, **buffers}
                uploaded_model = round.updates[name].model
                base_model = uploaded_model if self.continues_from_upload else received_model
                models[name] = add_scaled(base_model, top_fraction(common, reward[name]))
        # Without Γ, and with all clients at the global model, this is the plain weighted mean.
        is_plain_mean = self.protocol == "aggregation_only" and not self.gamma
        return WeightingResult(
            CgsvState(state.parameters, reputation, models),
            aggregation_weights=weights,
            client_weights=reputation.by_client,
            scores=normalise_weights({name: max(value, 0.0) for name, value in similarity.items()}),
            model=None
            if is_plain_mean
            else {**total, **add_scaled({name: round.global_model[name] for name in common}, common)},
            diagnostics={"similarity": similarity, "reward": reward},
        )

    def message_for(self, state: CgsvState, model: StateDict, client: str) -> ServerMessage:
        return ServerMessage(state.models.get(client, model))

    def _initial_weights(self, round: RoundData) -> dict[str, float]:
        if self.protocol == "aggregation_only":
            return normalise_weights(dict.fromkeys(round.clients, 1.0))
        return size_weights(round)

    def _scaled_deltas(self, state: CgsvState, round: RoundData) -> dict[str, StateDict]:
        official = self.protocol == "official"
        gamma = (0.5 if official else 0.0) if self.gamma is None else self.gamma
        deltas = {name: client_delta(round, name, state.parameters) for name in round.clients}
        return {name: rescale_norm(delta, gamma, lengthen=official) for name, delta in deltas.items()}
