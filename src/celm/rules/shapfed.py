"""ShapFed-WA: class-wise cosines of the last layer's gradients with everybody's.

    g_i = (what client i was sent - w_i) / lr,  g = Σ_i a_i g_i       with the weights before this round
    v_i,k = [row k of the head's weight, entry k of its bias] of g_i  [d + 1],  v_k the same of g
    s_i,k = (1 + cos(v_i,k, v_k)) / 2                                 [N, K]; the cosine itself where `raw`
    γ_i = mean_k s̄_i,k,   s̄ ← μ s̄ + (1 - μ) s                        from the second time on
    a_i = max(γ_i, floor) / Σ_j max(γ_j, floor), or softmax(γ);       w_g = Σ_i a_i w_i

Reference: Tastan et al., Redefining Contributions: Shapley-Driven Federated Learning, IJCAI 2024, and its code,
which evaluates the grand coalition only and merges with the new weights. 1/lr falls out of the cosines. With
`personal` a client goes on from (1 - k_i) w_i + k_i w_g, k_i = γ_i / max_j γ_j, parameters only; of the
three k in the source (a_i, γ_i and this) it is the one under which the best client gets the whole model.

The code's plain cosines feed back into the reference and run away: the sum of weights crosses 0 within twenty
rounds. Hence the default `half`, and `floor` where cosines are raw; both `half` and `softmax` are in the source
as comments. A zero gradient has cosine 0, so under `half` who sends back what it got scores 1/2. Who is absent
keeps its s̄; a newcomer counts with the mean weight in the reference, then with its own first s.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor

from celm.base.names import in_order
from celm.method.weights import Weights, normalised
from celm.models.state import StateDict
from celm.rules.exchange import Delivery, Round
from celm.rules.rule import Facts, Rule, Weighing
from celm.rules.updates import change, parameter_names


@dataclass(frozen=True)
class Similarities:
    """s̄ `[K]` of every client seen; where models are personal, the last one each client trained."""

    parameters: tuple[str, ...] = ()
    of: Mapping[str, Tensor] = field(default_factory=dict)
    models: Mapping[str, StateDict] = field(default_factory=dict)


@dataclass(frozen=True)
class ShapFed(Rule[Similarities]):
    """Class-wise cosines of the last layer's gradients (class-specific Shapley values)."""

    state_type: ClassVar[type] = Similarities

    similarity: Literal["half", "raw"] = "half"
    """(1 + cos) / 2, or the cosine itself."""
    normalise: Literal["sum", "softmax"] = "sum"
    """How contributions become weights."""
    momentum: Annotated[float, Field(ge=0, lt=1)] = 0.9
    """μ: the share of the old similarities in the new."""
    floor: Annotated[float, Field(gt=0)] = 1e-3
    """The least contribution, before it is scaled."""
    personal: bool = False  # type: ignore[misc]  # a constant of other rules, here a choice
    """Whether clients mix the global model into their own by contribution."""

    def init(self, federation: Facts) -> Similarities:
        return Similarities(parameter_names(federation))

    def weigh(self, state: Similarities, federation: Facts, round: Round) -> Weighing[Similarities]:
        names = round.clients
        before = Weights(self.weights(state.of)).among(names)
        steps = {name: change(round, name, federation.head) for name in names}
        common = rows(round.average(list(steps.values()), list(before.values())), federation.classes)
        similar = {name: self.compare(rows(steps[name], federation.classes), common) for name in names}
        smooth = {
            name: torch.lerp(new, state.of[name], self.momentum) if name in state.of else new
            for name, new in similar.items()
        }
        known = {**state.of, **smooth}
        known = {name: known[name] for name in in_order(known)}
        own = {name: round.held(name) for name in names} if self.personal else {}
        return Weighing(
            Similarities(state.parameters, known, {**state.models, **own}),
            weights=self.weights({name: known[name] for name in names}),
            standing=self.weights(known),
            scores=self.weights(similar),
            diagnostics={"similarity": {name: values.tolist() for name, values in similar.items()}},
        )

    def deliver(self, state: Similarities, model: StateDict, client: str) -> Delivery:
        if client not in state.models:
            return Delivery(model)
        highest = max(self.contribution(values) for values in state.of.values())
        part = self.contribution(state.of[client]) / highest
        own = state.models[client]
        mixed = {name: torch.lerp(own[name], model[name], part) for name in state.parameters}
        return Delivery({**own, **mixed})

    def compare(self, own: Tensor, common: Tensor) -> Tensor:
        """s of one client `[K]`, from rows `[K, d + 1]`."""
        cosines: Tensor = (direction(own) * direction(common)).sum(1).clamp(-1, 1)
        return (1 + cosines) / 2 if self.similarity == "half" else cosines

    def contribution(self, similar: Tensor) -> float:
        return max(float(similar.mean()), self.floor)

    def weights(self, similar: Mapping[str, Tensor]) -> dict[str, float]:
        """a from s̄ of some clients, scaled over them."""
        if self.normalise == "softmax":
            return normalised({name: math.exp(float(values.mean())) for name, values in similar.items()})
        return normalised({name: self.contribution(values) for name, values in similar.items()})


def rows(head: StateDict, classes: int) -> Tensor:
    """One row of float64 values for each class, weight and bias side by side: `[K, d + 1]`."""
    return torch.cat([tensor.double().reshape(classes, -1) for tensor in head.values()], dim=1)


def direction(vectors: Tensor) -> Tensor:
    """Rows at length 1; zero rows stay zero. Scaled by the largest value first, whose square might overflow."""
    least = torch.finfo(vectors.dtype).tiny
    vectors = torch.nan_to_num(vectors)  # the average of huge values may have overflown
    vectors = vectors / vectors.abs().amax(1, keepdim=True).clamp(min=least)
    unit: Tensor = vectors / torch.linalg.vector_norm(vectors, dim=1, keepdim=True).clamp(min=least)
    return unit
