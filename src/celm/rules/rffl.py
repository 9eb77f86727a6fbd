"""RFFL: reputation by cosine, and removal of those who fall too low.

    u_i = Δ_i, shortened to length Γ where longer          Δ_i = w_i - what client i was sent
    u = Σ_{i∈R} r_i u_i                                    with the reputation before this round; w_g ← w_g + u
    r_i ← max(α r_i + (1 - α) cos(u_i, u), 0), scaled to sum 1 over R
    from round 11 on: who has r_i < κ / |R| leaves R for good, and r is scaled again        κ = 1/3
    client i goes on from what it was sent + u_i + u's largest values, ⌈q_i size⌉ of each tensor,
    q_i = r_i / max_j r_j                                  those outside R get none

Reference: Xu and Lyu, A Reputation Mechanism Is All You Need: Collaborative Fairness and Adversarial Robustness
in Federated Learning, ICML 2021 workshop on federated learning; the later version of its code, where removal
waits ten rounds. Γ = 0.5 is its value for MNIST (0.15 CIFAR-10, 1 text). In the first round n_i / n stands for
the reputation. Reported are the new reputations; the models were merged with the old ones.

Deviations: the source lets r_i be negative, which can turn the sum and with it every sign, so ours is held at
0 (all at 0: all the same); ties at the cut are kept and q_i = 1 keeps all; the source has no server model,
ours is moved by u. Only parameters have a direction; buffers are averaged, and a client keeps its own. The
clients present share out the reputation they hold together, those absent keep theirs and are not judged, a
newcomer starts at the mean of R; R is never emptied. Where nobody present is in R the global model stays,
and weights, which then are not used, are uniform. Results are means over the clients' own models, as in
the source.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, ClassVar

from pydantic import Field

from celm.method.weights import Weights, normalised
from celm.models.deltas import flat, moved
from celm.models.state import StateDict
from celm.rules.exchange import Delivery, Round
from celm.rules.rule import Facts, Needs, Rule, Weighing
from celm.rules.updates import (
    alignment,
    by_size,
    change,
    largest,
    own_change,
    parameter_names,
    pooled,
    rescaled,
)


@dataclass(frozen=True)
class Reputable:
    """R with its reputations, those who left it, and everybody's own model."""

    parameters: tuple[str, ...] = ()
    weights: Weights = field(default_factory=Weights)
    removed: tuple[str, ...] = ()
    models: Mapping[str, StateDict] = field(default_factory=dict)


@dataclass(frozen=True)
class Rffl(Rule[Reputable]):
    """Reputation by cosine with the common update; the least reputable are removed."""

    needs: ClassVar[Needs] = Needs(sizes=True)
    personal: ClassVar[bool] = True
    state_type: ClassVar[type] = Reputable

    alpha: Annotated[float, Field(ge=0, lt=1)] = 0.95
    """Share of the old reputation in the new."""
    gamma: Annotated[float, Field(ge=0)] = 0.5
    """Γ: the greatest length of an update; 0 is no bound."""
    threshold: Annotated[float, Field(ge=0, lt=1)] = 1 / 3
    """κ: who has less than this fraction of the mean reputation is removed."""
    patience: Annotated[int, Field(ge=0)] = 10
    """First rounds in which nobody is removed."""

    def init(self, federation: Facts) -> Reputable:
        return Reputable(parameter_names(federation))

    def weigh(self, state: Reputable, federation: Facts, round: Round) -> Weighing[Reputable]:
        names = round.clients
        trusted = [name for name in names if name not in state.removed]
        known = state.weights.knowing(trusted)
        first = not state.weights.of
        weights = by_size(round) if first else known.among(trusted)
        weights = {name: weights.get(name, 0.0) for name in names} if trusted else equal(names)
        steps = self.steps(state, round)
        lied = {
            name: self.shortened(own_change(round, name, state.parameters))
            for name in names
            if name in round.own
        }
        own = {
            name: {**round.held(name), **moved(chosen(round, name, state.parameters), step)}
            for name, step in {**steps, **lied}.items()
        }
        similarity: dict[str, float] = {}
        reward: dict[str, float] = {}
        reputation, removed, model = known, state.removed, round.start
        if trusted:
            total = pooled(round, {name: steps[name] for name in trusted}, weights)
            common = {name: total[name] for name in state.parameters}
            model = {**total, **moved({name: round.start[name] for name in common}, common)}
            direction = flat(common)
            similarity = {name: alignment(flat(step), direction) for name, step in steps.items()}
            old = dict.fromkeys(names, 0.0) if first else weights
            raised = {
                name: max(self.alpha * old[name] + (1 - self.alpha) * similarity[name], 0.0)
                for name in trusted
            }
            held = math.fsum(known.of[name] for name in trusted)
            share = {name: held * part for name, part in normalised(raised).items()}
            reputation = Weights({**known.of, **share})
            if round.number > self.patience:
                least = self.threshold / len(reputation.of)
                fallen = tuple(name for name in trusted if share[name] < least)
                staying = {name: value for name, value in reputation.of.items() if name not in fallen}
                if fallen and staying:
                    reputation, removed = Weights(normalised(staying)), removed + fallen
            highest = max(reputation.of.get(name, 0.0) for name in trusted)
            for name in trusted:
                reward[name] = reputation.of.get(name, 0.0) / highest if highest > 0 else 0.0
                own[name] = moved(own[name], largest(common, reward[name]))
        return Weighing(
            Reputable(state.parameters, reputation, removed, {**state.models, **own}),
            weights=weights,
            standing=normalised({**reputation.of, **dict.fromkeys(removed, 0.0)}),
            scores=normalised({name: max(similarity.get(name, 0.0), 0.0) for name in names}),
            model=model,
            diagnostics={"similarity": similarity, "reward": reward, "removed": list(removed)},
        )

    def deliver(self, state: Reputable, model: StateDict, client: str) -> Delivery:
        return Delivery(state.models.get(client, model))

    def steps(self, state: Reputable, round: Round) -> dict[str, StateDict]:
        changes = {name: change(round, name, state.parameters) for name in round.clients}
        return {name: self.shortened(step) for name, step in changes.items()}

    def shortened(self, step: StateDict) -> StateDict:
        return rescaled(step, self.gamma, lengthen=False)


def equal(names: Sequence[str]) -> dict[str, float]:
    return dict.fromkeys(names, 1 / len(names))


def chosen(round: Round, client: str, names: tuple[str, ...]) -> StateDict:
    """The named tensors of what the client was sent."""
    return {name: round.delivered[client].model[name] for name in names}
