"""ShapFed-WA: class-wise cosines of the last layer's gradients with the common gradient.

    g_i = (model sent to client i - w_i) / lr,  g = Σ_i a_i g_i       with the weights before this round
    v_i,k = [row k of the head's weight, entry k of its bias] of g_i  [d + 1],  v_k the same of g
    s_i,k = (1 + cos(v_i,k, v_k)) / 2                                 [N, K]; the cosine itself with `raw`
    γ_i = mean_k s̄_i,k,   s̄ ← μ s̄ + (1 - μ) s                        from a client's second round on
    a_i = max(γ_i, floor) / Σ_j max(γ_j, floor), or softmax(γ);       w_g = Σ_i a_i w_i

Reference: Tastan et al., Redefining Contributions: Shapley-Driven Federated Learning, IJCAI 2024, and its code,
which evaluates the grand coalition only and aggregates with the new weights. 1/lr cancels in the cosines. With
`personal`, the next model of a client is (1 - k_i) w_i + k_i w_g, k_i = γ_i / max_j γ_j, for parameters only. The
source has three versions of k (a_i, γ_i and this one); with this one the best client gets the global model.

The code's raw cosines feed back into the common gradient and diverge: the sum of weights crosses 0 within twenty
rounds. Hence the default `half`, and `floor` for raw cosines; both `half` and `softmax` are in the source as
comments. A zero gradient has cosine 0, so with `half` a client that returns the model it received scores 1/2.
Absent clients keep their s̄. A newcomer has the mean weight in the common gradient, then its own first s.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor

from celm.base.client_order import natural_sorted
from celm.core.weights import ClientWeights, normalise_weights
from celm.models.state_dict import StateDict
from celm.rules.messages import RoundData, ServerMessage
from celm.rules.rule import Requirements, Rule, ServerContext, WeightingResult
from celm.rules.update_ops import client_delta, parameter_names


@dataclass(frozen=True)
class ShapFedState:
    """s̄ `[K]` of every client seen; with `personal` also the last model that each client uploaded."""

    parameters: tuple[str, ...] = ()
    similarities: Mapping[str, Tensor] = field(default_factory=dict)
    models: Mapping[str, StateDict] = field(default_factory=dict)


@dataclass(frozen=True)
class ShapFed(Rule[ShapFedState]):
    """Class-wise cosines of the gradients of the last layer."""

    state_type: ClassVar[type] = ShapFedState
    requirements: ClassVar[Requirements] = Requirements(head=True)

    similarity: Literal["half", "raw"] = "half"
    """Similarity: (1 + cos) / 2 or the cosine itself."""
    normalise: Literal["sum", "softmax"] = "sum"
    """Whether weights are contributions divided by their sum, or their softmax."""
    momentum: Annotated[float, Field(ge=0, lt=1)] = 0.9
    """μ, the share of the old similarities in the new ones."""
    floor: Annotated[float, Field(gt=0)] = 1e-3
    """Smallest contribution before scaling."""
    personal: bool = False  # type: ignore[misc]  # a constant of other rules, a setting of this one
    """Whether a client's next model mixes its own with the global one by contribution."""

    @property
    def continues_from_upload(self) -> bool:
        return self.personal

    def init(self, context: ServerContext) -> ShapFedState:
        return ShapFedState(parameter_names(context))

    def compute_weights(
        self, state: ShapFedState, context: ServerContext, round: RoundData
    ) -> WeightingResult[ShapFedState]:
        names = round.clients
        previous_weights = ClientWeights(self._contribution_weights(state.similarities)).restricted_to(names)
        head_deltas = {name: client_delta(round, name, context.head) for name in names}
        common_rows = _head_class_rows(
            round.average(list(head_deltas.values()), list(previous_weights.values())), context.classes
        )
        similarities = {
            name: self._class_similarity(_head_class_rows(head_deltas[name], context.classes), common_rows)
            for name in names
        }
        smoothed_similarities = {
            name: torch.lerp(new, state.similarities[name], self.momentum)
            if name in state.similarities
            else new
            for name, new in similarities.items()
        }
        all_similarities = {**state.similarities, **smoothed_similarities}
        all_similarities = {name: all_similarities[name] for name in natural_sorted(all_similarities)}
        client_models = {name: round.updates[name].model for name in names} if self.personal else {}
        return WeightingResult(
            ShapFedState(state.parameters, all_similarities, {**state.models, **client_models}),
            aggregation_weights=self._contribution_weights({name: all_similarities[name] for name in names}),
            client_weights=self._contribution_weights(all_similarities),
            scores=self._contribution_weights(similarities),
            diagnostics={"similarity": {name: values.tolist() for name, values in similarities.items()}},
        )

    def message_for(self, state: ShapFedState, model: StateDict, client: str) -> ServerMessage:
        if client not in state.models:
            return ServerMessage(model)
        highest = max(self._contribution(values) for values in state.similarities.values())
        mixing = self._contribution(state.similarities[client]) / highest
        client_model = state.models[client]
        mixed = {name: torch.lerp(client_model[name], model[name], mixing) for name in state.parameters}
        return ServerMessage({**client_model, **mixed})

    def _class_similarity(self, client_rows: Tensor, common_rows: Tensor) -> Tensor:
        """Return s `[K]` of one client from rows `[K, d + 1]`."""
        cosines: Tensor = (_unit_rows(client_rows) * _unit_rows(common_rows)).sum(1).clamp(-1, 1)
        return (1 + cosines) / 2 if self.similarity == "half" else cosines

    def _contribution(self, similarities: Tensor) -> float:
        return max(float(similarities.mean()), self.floor)

    def _contribution_weights(self, similarities: Mapping[str, Tensor]) -> dict[str, float]:
        """Return the weights a of some clients from their s̄."""
        if self.normalise == "softmax":
            return normalise_weights(
                {name: math.exp(float(values.mean())) for name, values in similarities.items()}
            )
        return normalise_weights({name: self._contribution(values) for name, values in similarities.items()})


def _head_class_rows(head: StateDict, classes: int) -> Tensor:
    """Return one float64 row per class, weight beside bias: `[K, d + 1]`."""
    return torch.cat([tensor.double().reshape(classes, -1) for tensor in head.values()], dim=1)


def _unit_rows(vectors: Tensor) -> Tensor:
    """Scale rows to norm 1; zero rows stay zero. Dividing by the maximum first keeps squares from overflowing."""
    smallest = torch.finfo(vectors.dtype).tiny
    vectors = torch.nan_to_num(vectors)  # the average of huge values may have overflowed
    vectors = vectors / vectors.abs().amax(1, keepdim=True).clamp(min=smallest)
    unit: Tensor = vectors / torch.linalg.vector_norm(vectors, dim=1, keepdim=True).clamp(min=smallest)
    return unit
