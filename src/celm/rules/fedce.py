"""FedCE: new directions, and how badly the others do without a client.

    Δ_i = w_i - what client i was sent
    g_i = max(0, 1 - mean over rounds of cos(Δ_i, Σ_{j≠i} a_j Δ_j))    with the weights before this round
    e_i = 1 - mean over rounds of v_i                                  v_i: accuracy on client i's own held-out
                                                                       data of the model without it,
                                                                       (w_g - a_i w_i) / (1 - a_i); 0 at first
    a ← norm(norm(g) + norm(e)), or of their product                   norm: at least 1e-6, scaled to sum 1
    w_g = Σ_i a_i w_i

Reference: Jiang et al., Fair Federated Medical Image Segmentation via Client Contribution Estimation, CVPR 2023;
NVFlare's implementation, whose `plus` is our default as it is there, and its floor (1e-3 in its first version).
The score there is Dice, here accuracy. As there, v_i = 0 of a client's first round counts in its mean.

The means are over the rounds a client took part in. A client that was not in the last round is not in w_g, so
it has nothing to judge and its mean stays; nor is there a model without a client that was (all but) alone. Where no one
examines, as when this rule only observes, e is equal for all. v_i is what the client says: one that lies
low gains. Only parameters have a direction. Who is absent keeps its weight, a newcomer starts at the mean.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, ClassVar, Literal

from pydantic import Field

from celm.method.weights import Weights, normalised
from celm.models.deltas import difference, flat, moved
from celm.models.state import StateDict
from celm.rules.exchange import Delivery, Round, Update
from celm.rules.rule import Facts, Needs, Rule, Weighing
from celm.rules.updates import alignment, change, parameter_names


@dataclass(frozen=True)
class Mean:
    """A running mean."""

    total: float = 0.0
    count: int = 0

    @property
    def value(self) -> float:
        return self.total / self.count if self.count else 0.0

    def with_value(self, value: float) -> Mean:
        return Mean(self.total + value, self.count + 1)


@dataclass(frozen=True)
class Contributions:
    """Weights and running means of every client seen; models and weights of those in the last round."""

    parameters: tuple[str, ...] = ()
    weights: Weights = field(default_factory=Weights)
    similarity: Mapping[str, Mean] = field(default_factory=dict)
    without: Mapping[str, Mean] = field(default_factory=dict)
    """v of the models without a client."""
    models: Mapping[str, StateDict] = field(default_factory=dict)
    used: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class FedCe(Rule[Contributions]):
    """New gradient directions, and the accuracy of the model without a client on its own data."""

    needs: ClassVar[Needs] = Needs(validation=True, extras="the accuracy of a second model")
    state_type: ClassVar[type] = Contributions

    mode: Literal["plus", "times"] = "plus"
    """How directions and accuracy are joined."""
    floor: Annotated[float, Field(gt=0, le=0.1)] = 1e-6
    """The least of each part, before it is scaled."""

    def init(self, federation: Facts) -> Contributions:
        return Contributions(parameter_names(federation))

    def weigh(self, state: Contributions, federation: Facts, round: Round) -> Weighing[Contributions]:
        names = round.clients
        known = state.weights.knowing(names)
        before = known.among(names)
        cosines = self.cosines(state, round, before)
        similarity = {name: state.similarity.get(name, Mean()).with_value(cosines[name]) for name in names}
        without = {name: judged(state.without.get(name), round.updates[name]) for name in names}
        novel = self.scaled({name: 1 - similarity[name].value for name in names})
        missed = self.scaled({name: 1 - without[name].value for name in names})
        plus = self.mode == "plus"
        joined = {name: novel[name] + missed[name] if plus else novel[name] * missed[name] for name in names}
        weights = self.scaled(joined)
        held = math.fsum(known.of[name] for name in names)
        standing = Weights({**known.of, **{name: held * weight for name, weight in weights.items()}})
        return Weighing(
            Contributions(
                state.parameters,
                standing,
                {**state.similarity, **similarity},
                {**state.without, **without},
                models={name: update.model for name, update in round.updates.items()},
                used=weights,
            ),
            weights=weights,
            standing=standing.of,
            scores=weights,
            diagnostics={"cosine": cosines, "novel": novel, "missed": missed},
        )

    def deliver(self, state: Contributions, model: StateDict, client: str) -> Delivery:
        """The global model, and to judge, the same without the client's part in it: w_g + a (w_g - w_i) / (1 - a)."""
        part = state.used.get(client, 1.0)
        if 1 - part < 1e-4:  # nothing but rounding would be left
            return Delivery(model)
        away = difference(model, state.models[client])
        return Delivery(model, examine=moved(model, away, scale=part / (1 - part)))

    def cosines(self, state: Contributions, round: Round, weights: Mapping[str, float]) -> dict[str, float]:
        """Of every client's update with the average of all others'; 0 for one that is alone."""
        steps = {name: change(round, name, state.parameters) for name in round.clients}
        found: dict[str, float] = {}
        for name, step in steps.items():
            # The others averaged anew: taking one away from the sum leaves noise where nothing should be left.
            others = [other for other in steps if other != name]
            found[name] = 0.0
            if others:
                rest = round.average([steps[other] for other in others], [weights[other] for other in others])
                found[name] = alignment(flat(step), flat(rest))
        return found

    def scaled(self, values: Mapping[str, float]) -> dict[str, float]:
        return normalised({name: max(value, self.floor) for name, value in values.items()})


def judged(before: Mean | None, update: Update) -> Mean:
    """The mean of v with this round's; a client's first counts as 0, and no number leaves it as it was."""
    if before is None:
        return Mean().with_value(0.0)
    if update.examined is None or not math.isfinite(update.examined):
        return before
    return before.with_value(min(max(update.examined, 0.0), 1.0))
