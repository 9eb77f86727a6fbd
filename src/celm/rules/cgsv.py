"""CGSV: contribution as the cosine of a client's update with everybody's, models as rewards.

    u_i = Γ Δ_i / (||Δ_i|| + 1e-7)                 Δ_i = w_i - what client i was sent
    u = Σ_i r_i u_i                                with the reputation before this round; w_g ← w_g + u
    φ_i = cos(u_i, u)
    r_i ← max(α r_i + (1 - α) φ_i, 1e-3), scaled to sum 1
    q_i = tanh(β r_i) / max_j tanh(β r_j)          client i is rewarded with u's largest values by magnitude,
                                                   ⌈q_i size⌉ of each tensor

Reference: Xu et al., Gradient-Driven Rewards to Guarantee Fairness in Collaborative Machine Learning,
NeurIPS 2021, and its code. Reported are the new reputations; the models were merged with the old ones.
Three protocols:

- `official`, the source's: every client has a model of its own, is reset to what it was before training and
  gets its reward. Reputation starts at 0, and n_i / n stands for it in the first round.
- `keep`, from earlier code of the CELM paper's authors: the client keeps its training and gets its reward on
  top. Clients and server drift apart, which explains the collapsed column of their tables best, though not
  all of it. Their Γ shortens but never lengthens updates; by default there is none.
- `aggregation_only`: everybody starts from the global model and reputations are plain aggregation weights,
  1/N in the first round; no Γ by default. The fair baseline.

The library's default is the source's protocol, with its Γ for MNIST (0.15 for CIFAR-10). What is reported as
accuracy is the server's model; each client's own is in the last round's `client_accuracy`.

Deviations: only parameters have a direction, buffers are averaged; ties at the cut are kept, and q_i = 1 keeps
all (the source drops the least value of each tensor). The clients present share out the reputation they hold
together; those absent keep theirs, and their models. A zero update has cosine 0, so the floor holds it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, ClassVar, Literal

from pydantic import Field

from celm.method.weights import Weights, normalised
from celm.models.deltas import flat, moved
from celm.models.state import StateDict
from celm.rules.exchange import Delivery, Round
from celm.rules.rule import Facts, Needs, Rule, Weighing
from celm.rules.updates import alignment, by_size, change, largest, parameter_names, pooled, rescaled


@dataclass(frozen=True)
class Reputations:
    """The reputation of every client seen, and the models they hold where they hold their own."""

    parameters: tuple[str, ...] = ()
    weights: Weights = field(default_factory=Weights)
    models: Mapping[str, StateDict] = field(default_factory=dict)


@dataclass(frozen=True)
class Cgsv(Rule[Reputations]):
    """Reputation by cosine with the common update (cosine gradient Shapley value)."""

    needs: ClassVar[Needs] = Needs(sizes=True)
    state_type: ClassVar[type] = Reputations

    protocol: Literal["official", "keep", "aggregation_only"] = "official"
    """What clients start from: their model before training, their own after it, or the global model."""
    alpha: Annotated[float, Field(ge=0, lt=1)] = 0.95
    """Share of the old reputation in the new."""
    beta: Annotated[float, Field(gt=0)] = 1.0
    """Altruism: the larger, the more alike the rewards."""
    gamma: Annotated[float, Field(ge=0)] | None = None
    """Γ: the length of updates if official, else a bound on it; 0 is none. By default 0.5 if official, else 0."""
    floor: Annotated[float, Field(gt=0)] = 1e-3
    """The least reputation, before it is scaled."""

    def init(self, federation: Facts) -> Reputations:
        return Reputations(parameter_names(federation))

    def weigh(self, state: Reputations, federation: Facts, round: Round) -> Weighing[Reputations]:
        names = round.clients
        known = state.weights.knowing(names)
        first = not state.weights.of
        weights = self.first_weights(round) if first else known.among(names)
        steps = self.steps(state, round)
        total = pooled(round, steps, weights)
        common = {name: total[name] for name in state.parameters}
        direction = flat(common)
        similarity = {name: alignment(flat(step), direction) for name, step in steps.items()}

        old = dict.fromkeys(names, 0.0) if first else weights
        raised = {
            name: max(self.alpha * old[name] + (1 - self.alpha) * similarity[name], self.floor)
            for name in names
        }
        held = math.fsum(known.of[name] for name in names)
        share = {name: held * part for name, part in normalised(raised).items()}
        reputation = Weights({**known.of, **share})

        altruism = {name: math.tanh(self.beta * share[name]) for name in names}
        highest = max(altruism.values())
        reward = {name: value / highest if highest > 0 else 1.0 for name, value in altruism.items()}
        models = dict(state.models)
        if self.protocol != "aggregation_only":
            buffers = {name: tensor for name, tensor in total.items() if name not in common}
            for name in names:
                before = {**round.delivered[name].model, **buffers}
                own = before if self.protocol == "official" else round.held(name)
                models[name] = moved(own, largest(common, reward[name]))
        # Without Γ and with everybody at the global model, this is the plain weighted mean.
        plain = self.protocol == "aggregation_only" and not self.gamma
        return Weighing(
            Reputations(state.parameters, reputation, models),
            weights=weights,
            standing=reputation.of,
            scores=normalised({name: max(value, 0.0) for name, value in similarity.items()}),
            model=None if plain else {**total, **moved({name: round.start[name] for name in common}, common)},
            diagnostics={"similarity": similarity, "reward": reward},
        )

    def deliver(self, state: Reputations, model: StateDict, client: str) -> Delivery:
        return Delivery(state.models.get(client, model))

    def first_weights(self, round: Round) -> dict[str, float]:
        if self.protocol == "aggregation_only":
            return normalised(dict.fromkeys(round.clients, 1.0))
        return by_size(round)

    def steps(self, state: Reputations, round: Round) -> dict[str, StateDict]:
        official = self.protocol == "official"
        gamma = (0.5 if official else 0.0) if self.gamma is None else self.gamma
        changes = {name: change(round, name, state.parameters) for name in round.clients}
        return {name: rescaled(step, gamma, lengthen=official) for name, step in changes.items()}
