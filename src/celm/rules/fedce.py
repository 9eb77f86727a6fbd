"""FedCE: new update directions, and the error of the model without a client.

    Δ_i = w_i - the model sent to client i
    g_i = max(0, 1 - mean over rounds of cos(Δ_i, Σ_{j≠i} a_j Δ_j))    with the weights before this round
    e_i = 1 - mean over rounds of v_i                                  v_i: accuracy on client i's own held-out
                                                                       data of the model without it,
                                                                       (w_g - a_i w_i) / (1 - a_i); 0 at first
    a ← norm(norm(g) + norm(e)), or of their product                   norm: at least 1e-6, scaled to sum 1
    w_g = Σ_i a_i w_i

Reference: Jiang et al., Fair Federated Medical Image Segmentation via Client Contribution Estimation, CVPR 2023.
The default `plus` and the floor are those of NVFlare's implementation (1e-3 in its first version). Its score is Dice,
ours is accuracy. As there, v_i = 0 of a client's first round counts in its mean.

Means are over the rounds in which a client took part. A client that missed the last round is not in w_g: it
evaluates no model, and its mean does not change. The same holds for a client with almost all the weight. If no client
evaluates, for example because this rule only observes, e is equal for all. v_i is self-reported: a client gains by
reporting low accuracy. Only parameters have a direction. Absent clients keep their weight; newcomers start at the mean.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, ClassVar, Literal

from pydantic import Field

from celm.core.weights import ClientWeights, normalise_weights
from celm.models.state_dict import StateDict
from celm.models.state_ops import add_scaled, difference, flatten
from celm.rules.messages import ClientUpdate, RoundData, ServerMessage
from celm.rules.rule import Requirements, Rule, ServerContext, WeightingResult
from celm.rules.update_ops import client_delta, finite_cosine, parameter_names


@dataclass(frozen=True)
class _RunningMean:
    """A running mean; 0 without values."""

    total: float = 0.0
    count: int = 0

    @property
    def value(self) -> float:
        return self.total / self.count if self.count else 0.0

    def add(self, value: float) -> _RunningMean:
        return _RunningMean(self.total + value, self.count + 1)


@dataclass(frozen=True)
class FedCeState:
    """Weights and running means of every client seen; models and weights of the clients in the last round."""

    parameters: tuple[str, ...] = ()
    weights: ClientWeights = field(default_factory=ClientWeights)
    similarity: Mapping[str, _RunningMean] = field(default_factory=dict)
    accuracy_without: Mapping[str, _RunningMean] = field(default_factory=dict)
    """Mean of v_i."""
    models: Mapping[str, StateDict] = field(default_factory=dict)
    last_weights: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class FedCe(Rule[FedCeState]):
    """New directions, and accuracy of the model without the client.

    Accuracy is that of the model without a client, on the client's own data.
    """

    requirements: ClassVar[Requirements] = Requirements(
        validation=True, extra_exchange="the accuracy of a second model"
    )
    state_type: ClassVar[type] = FedCeState

    mode: Literal["plus", "times"] = "plus"
    """Whether directions and errors are added or multiplied."""
    floor: Annotated[float, Field(gt=0, le=0.1)] = 1e-6
    """Smallest value of each part before scaling."""

    def init(self, context: ServerContext) -> FedCeState:
        return FedCeState(parameter_names(context))

    def compute_weights(
        self, state: FedCeState, context: ServerContext, round: RoundData
    ) -> WeightingResult[FedCeState]:
        names = round.clients
        previous = state.weights.with_clients(names)
        previous_weights = previous.restricted_to(names)
        cosines = self._leave_one_out_cosines(state, round, previous_weights)
        similarity = {name: state.similarity.get(name, _RunningMean()).add(cosines[name]) for name in names}
        accuracy_without = {
            name: _update_accuracy(state.accuracy_without.get(name), round.updates[name]) for name in names
        }
        novel = self._floor_and_normalise({name: 1 - similarity[name].value for name in names})
        missed = self._floor_and_normalise({name: 1 - accuracy_without[name].value for name in names})
        is_sum = self.mode == "plus"
        joined = {
            name: novel[name] + missed[name] if is_sum else novel[name] * missed[name] for name in names
        }
        weights = self._floor_and_normalise(joined)
        present_total = math.fsum(previous.by_client[name] for name in names)
        client_weights = ClientWeights(
            {**previous.by_client, **{name: present_total * weight for name, weight in weights.items()}}
        )
        return WeightingResult(
            FedCeState(
                state.parameters,
                client_weights,
                {**state.similarity, **similarity},
                {**state.accuracy_without, **accuracy_without},
                models={name: update.model for name, update in round.updates.items()},
                last_weights=weights,
            ),
            aggregation_weights=weights,
            client_weights=client_weights.by_client,
            scores=weights,
            diagnostics={"cosine": cosines, "novel": novel, "missed": missed},
        )

    def message_for(self, state: FedCeState, model: StateDict, client: str) -> ServerMessage:
        """Return the global model, and w_g + a (w_g - w_i) / (1 - a), the model without the client, to evaluate."""
        weight = state.last_weights.get(client, 1.0)
        if 1 - weight < 1e-4:  # only rounding would be left
            return ServerMessage(model)
        direction = difference(model, state.models[client])
        return ServerMessage(
            model, model_to_evaluate=add_scaled(model, direction, scale=weight / (1 - weight))
        )

    def _leave_one_out_cosines(
        self, state: FedCeState, round: RoundData, weights: Mapping[str, float]
    ) -> dict[str, float]:
        """Return the cosine of each client's update with the average of all others; 0 for a client that is alone."""
        deltas = {name: client_delta(round, name, state.parameters) for name in round.clients}
        cosines: dict[str, float] = {}
        for name, delta in deltas.items():
            # Average the others again: subtracting one from the sum would leave rounding noise.
            others = [other for other in deltas if other != name]
            cosines[name] = 0.0
            if others:
                others_mean = round.average(
                    [deltas[other] for other in others], [weights[other] for other in others]
                )
                cosines[name] = finite_cosine(flatten(delta), flatten(others_mean))
        return cosines

    def _floor_and_normalise(self, values: Mapping[str, float]) -> dict[str, float]:
        return normalise_weights({name: max(value, self.floor) for name, value in values.items()})


def _update_accuracy(mean: _RunningMean | None, update: ClientUpdate) -> _RunningMean:
    """Add this round's v to the mean: 0 in a client's first round; skipped if missing or not finite."""
    if mean is None:
        return _RunningMean().add(0.0)
    if update.reported_accuracy is None or not math.isfinite(update.reported_accuracy):
        return mean
    return mean.add(min(max(update.reported_accuracy, 0.0), 1.0))
